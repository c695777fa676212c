"""How many lines of each function of the hot path call Python, read from the C that Cython made.

`limpet bench instructions` counts what an operation costs; this says where a line has become slow:
a constant, an attribute or a call without a type. `python -m kit.python_lines` in tests/ writes the
table, python_lines.json, anew; what is in it then is looked at before it is committed.

A line counts if the C of it calls a function of Python or one of Cython's helpers for Python
objects. Lines that raise are counted, too: they are there, and never run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from kit.compiled_constants import ROOT, compiled_modules

TABLE: Final = Path(__file__).with_name("python_lines.json")
EVERYTHING: Final = (
    "limpet.shm.alloc.heap",
    "limpet.shm.clients.client",
    "limpet.shm.clients.unique_ids",
    "limpet.shm.replicas.replica_layout",
)
"""Modules all of whose functions are hot."""
HOT: Final = re.compile(
    r"_?(get|put|update|insert|delete|contains|find|place|write|replace|read|load|value|select|"
    r"allocate|expect|look|match|pairs|search|lock|unlock|acquire|release|take|try|enter|leave|"
    r"prefetch|locate|scan_group|to_recheck|note_pending|check_turn|check_participants|"
    r"recover_holder|once)(_\w*)?"
)
"""Names of functions that are hot in all other modules."""

_FUNCTION: Final = re.compile(r"^static .*?\b__pyx_f_(\w+)\(.*\) \{$")
_LINE: Final = re.compile(r'^ *\* *"[^"]*":(\d+)$|^ */\* "[^"]*":(\d+)$')
_PYTHON: Final = re.compile(r"\b(?:Py[A-Z][A-Za-z]*_\w+|__Pyx_[A-Z]\w*)\s*\(")
_FREE: Final = re.compile(
    r"Py_X?(INCREF|DECREF|CLEAR|NewRef)|Py_TYPE|__Pyx_(X?(INCREF|DECREF|GOTREF|GIVEREF|CLEAR)|"
    r"RefNanny|AddTraceback|IsSameType|TypeCheck|MEMVIEW_\w+|PyThreadState_\w+|"
    r"NewRef|DECREF_SET|ErrFetch|Trace\w*)|"
    r"PyBytes_(AS_STRING|GET_SIZE)|__Pyx_PyBytes_(AS_STRING|GET_SIZE)"
)
"""Macros that are a few instructions."""


def python_lines(module: str, source: Path) -> dict[str, int] | None:
    """Of each C function of a module, how many lines call Python; None: its C is not there."""
    made = source.with_suffix(".c")
    if not made.exists():
        return None
    found: dict[str, set[int]] = {}
    name, line, over = "", 0, False
    for text in made.read_text().splitlines():
        if name:
            if text == "}":
                name = ""
            elif "/* function exit code */" in text:
                over = True
            elif match := _LINE.match(text):
                line = int(match[1] or match[2])
            elif not over and any(not _FREE.match(call[0]) for call in _PYTHON.finditer(text)):
                found[name].add(line)
        elif match := _FUNCTION.match(text):
            name, line, over = _demangled(match[1], module), 0, False
            found.setdefault(name, set())
    return {name: len(lines) for name, lines in found.items()}


def _demangled(mangled: str, module: str) -> str:
    """`Class.function` of a C name: each part of it is behind its length."""
    for part in module.split("."):
        prefix = f"{len(part)}{part}_"
        if not mangled.startswith(prefix):
            return mangled
        mangled = mangled[len(prefix) :]
    match = re.match(r"(\d+)", mangled)
    if match is None:
        return mangled.removeprefix("_")
    size, rest = int(match[1]), mangled[match.end() :]
    return f"{rest[:size]}.{rest[size:].removeprefix('_')}"


def hot(module: str, function: str) -> bool:
    name = function.rpartition(".")[2]
    return module in EVERYTHING or HOT.fullmatch(name) is not None


def table() -> dict[str, dict[str, int]]:
    """The counts as they are now: of each module, those of its hot functions."""
    found = {}
    for module, source in compiled_modules().items():
        counts = python_lines(module, source)
        if counts is None:
            raise FileNotFoundError(f"{source} has no C beside it: build it in place")
        found[module] = {name: n for name, n in sorted(counts.items()) if hot(module, name)}
    return found


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n")
    print(f"{TABLE.relative_to(ROOT)} is written: look at what has changed")
