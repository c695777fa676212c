"""Whole-number constants of compiled modules that their `.pxd` does not declare.

Cython looks up a module-level name that no `.pxd` declares in the module's dictionary each time and
computes with it as with a Python object: hundreds of instructions in each operation, and nothing
tells. `undeclared` finds them in the sources, without a compiler.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_DECLARED = re.compile(r"^c(?:def|import)\b|^from .+ cimport\b")


def compiled_modules() -> dict[str, Path]:
    """The modules that `setup.py` compiles from Python, and their sources."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            found = ast.literal_eval(node.value)
            return {name: ROOT / path for name, path in found.items() if path.endswith(".py")}
    raise AssertionError("setup.py has no COMPILED")


def undeclared(source: Path) -> list[str]:
    """The constants that functions of a compiled module use, and its `.pxd` does not declare."""
    tree = ast.parse(source.read_text())
    constants = _constants(tree)
    used = {
        node.id
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.Lambda))
        for part in (function.body if isinstance(function.body, list) else [function.body])
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return sorted(constants & used - declared(source.with_suffix(".pxd")))


def declared(pxd: Path) -> set[str]:
    """The names that a `.pxd` declares at module level, or cimports; none if it is not there."""
    found: set[str] = set()
    if not pxd.exists():
        return found
    text = re.sub(
        r"\(\s*([^()]*?)\s*\)", lambda match: match[0].replace("\n", " "), pxd.read_text()
    )
    for line in text.splitlines():
        if _DECLARED.match(line):
            found.update(re.findall(r"\w+", line.partition("#")[0]))
    return found


def _constants(tree: ast.Module) -> set[str]:
    """The names of whole numbers at module level: assigned there, or imported."""
    found = set()
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            if not node.module.startswith("limpet."):
                continue
            module = importlib.import_module(node.module)
            for name in node.names:
                # a constant that a compiled module declares is no attribute of it
                value = getattr(module, name.name, 0 if name.name.isupper() else None)
                values[name.asname or name.name] = value
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    values[target.id] = _value(node.value, values)
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool):
            found.add(name)
    return found


def _value(node: ast.expr, values: dict[str, Any]) -> Any:
    """The value of a constant expression; None: it is not constant."""
    try:
        return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, dict(values))
    except Exception:
        return None


if __name__ == "__main__":
    for module, path in compiled_modules().items():
        if names := undeclared(path):
            print(module, *names)


def recursive(source: Path) -> set[str]:
    """The functions of a module that come to themselves by bare calls and calls of `self`."""
    calls: dict[str, set[str]] = {}
    tree = ast.parse(source.read_text())
    for scope in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        prefix = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
        for function in scope.body:
            if isinstance(function, ast.FunctionDef):
                calls[prefix + function.name] = {
                    ast.unparse(node.func).replace("self.", prefix, 1)
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call)
                }
    found = set()
    for name in calls:
        met: set[str] = set()
        left = [name]
        while left:
            new = calls.get(left.pop(), set()) - met
            met |= new
            left += new
        if name in met:
            found.add(name.rpartition(".")[2])
    return found
