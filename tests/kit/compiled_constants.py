"""Whole-number constants of compiled modules: that C has all of them, and means the same by them.

Cython looks up a module-level name that no `.pxd` declares in the module's dictionary each time and
computes with it as with a Python object: hundreds of instructions in each operation, and nothing
tells. `undeclared` finds them in the sources, without a compiler. A name that a `.pxd` cimports
means what it means there, whatever the module binds it to, and of two stars the last one counts;
nothing tells that, either: `clashes` does.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from limpet.shm.endpoint.fabric import BUILD

ROOT = Path(__file__).parents[2]
_DECLARED = re.compile(r"^cdef ([\w ]+?) (\w+) *(?:#.*)?$", re.M)
_CIMPORT = re.compile(r"^from (\S+) cimport (\([^()]*\)|[^\n(]*)$", re.M)
_NUMBER = re.compile(r'(\w+) "\((-?\d+)U?LL\)"')


def compiled_modules() -> dict[str, Path]:
    """The modules that `setup.py` compiles from Python, and their sources."""
    return {name: ROOT / path for name, path in _setup()[0].items() if path.suffix == ".py"}


def numbers() -> dict[str, dict[str, int]]:
    """What C is told of each module that is not compiled and whose constants others cimport."""
    return _setup()[1]


@cache
def _setup() -> tuple[dict[str, Path], dict[str, dict[str, int]]]:
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        with mock.patch("setuptools.setup"), mock.patch.dict(os.environ, LIMPET_PURE="1"):
            made = runpy.run_path("setup.py")
        texts = made["types_of_constants"]()
    finally:
        os.chdir(here)
    return made["COMPILED"], {
        module: {name: int(number) for name, number in _NUMBER.findall(text)}
        for module, text in texts.items()
    }


def undeclared(source: Path) -> list[str]:
    """The constants that functions of a compiled module use, and its `.pxd` does not declare."""
    tree = ast.parse(source.read_text())
    used = {
        node.id
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.Lambda))
        for part in (function.body if isinstance(function.body, list) else [function.body])
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    pxd = source.with_suffix(".pxd")
    known = {name for _, name, _ in cimported(pxd)} | declared(pxd)
    return sorted({n for n, v in _values(tree).items() if type(v) is int} & used - known)


def clashes(source: Path) -> list[str]:
    """Names to which a `.pxd` gives another meaning than its module, or two meanings, or that its
    module has not."""
    values = _values(ast.parse(source.read_text()))
    pxd = source.with_suffix(".pxd")
    wrong = declared(pxd) - values.keys()
    met: set[str] = set()
    for module, name, there in cimported(pxd):
        if module not in numbers():
            continue
        same = values.get(name, numbers()[module].get(there)) == numbers()[module].get(there)
        if name in met or not same:
            wrong.add(name)
        met.add(name)
    return sorted(wrong)


def cimported(pxd: Path) -> list[tuple[str, str, str]]:
    """What a `.pxd` cimports: the module, the name here, and the name there. A star stands for the
    constants of its module."""
    found = []
    for module, names in _CIMPORT.findall(pxd.read_text() if pxd.exists() else ""):
        for name in re.findall(r"\*|\w+ as \w+|\w+", names):
            there, _, here = name.partition(" as ")
            every = numbers()[module] if name == "*" else [there]
            found += [(module, here or there, there) for there in every]
    return found


def declared(pxd: Path) -> set[str]:
    """The variables that a `.pxd` declares at module level; none if it is not there."""
    found = _DECLARED.findall(pxd.read_text() if pxd.exists() else "")
    return {name for kind, name in found if not kind.startswith("class")}


def _values(tree: ast.Module) -> dict[str, Any]:
    """What a module binds at its top level: the values of constants, of its own and imported."""
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("limpet."):
            source = (ROOT / f"{node.module}".replace(".", "/")).with_suffix(".pyx")
            if BUILD == "pure" and source.exists():
                continue  # of C alone: the pure build refuses what needs it
            module = importlib.import_module(f"{node.module}")
            for name in node.names:
                # a constant that a compiled module declares is no attribute of it
                value = getattr(module, name.name, 0 if name.name.isupper() else None)
                values[name.asname or name.name] = value
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
                value = _value(node.value, values)
                parts = [value] if isinstance(target, ast.Name) else value or [None] * len(names)
                values.update(zip(names, parts, strict=True))
    return values


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
