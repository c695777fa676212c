"""The architecture that docs/ARCHITECTURE.md draws, read from the sources.

kit/today.py has what is not so yet. It only becomes shorter: an entry that is not needed any more
fails.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kit import compiled_constants, today

import limpet
from limpet import stores
from limpet.stores import registry

ROOT = Path(limpet.__file__).parent
ABOVE: Final = {
    "shm": ("stores", "fault", "bench", "cli", "adapters"),
    "stores": ("fault", "bench", "cli", "adapters"),
    "fault": ("bench", "cli", "adapters"),
}
"""Packages that a folder does not import, not even for type checking."""
LEVELS: Final = 3
"""Classes from one of stores/ to `object`, which is not counted."""


def sources() -> dict[str, Path]:
    """The modules of limpet, by name."""
    found = {}
    for folder, _, _ in _walk(ROOT):
        for path in folder.glob("*.py"):
            parts = ("limpet", *path.relative_to(ROOT).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _walk(top: Path) -> Iterator[tuple[Path, None, None]]:
    """The folders of packages; those of limpet are links."""
    yield top, None, None
    for entry in sorted(top.iterdir()):
        if entry.is_dir() and (entry / "__init__.py").exists():
            yield from _walk(entry)


def imports() -> dict[str, set[str]]:
    """Which modules of limpet each of them imports, anywhere in it."""
    modules = sources()
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for name in node.names:
                    within = f"{node.module}.{name.name}"
                    names.add(within if within in modules else node.module)
        found[module] = {name for name in names if name in modules} - {module}
    return found


def cycles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """The sets of modules that all lead to each other, sorted."""
    reached = {module: _reach(graph, module) for module in graph}
    found = set()
    for module, others in reached.items():
        if module in others:
            found.add(tuple(sorted(other for other in others if module in reached[other])))
    return found


def _reach(graph: dict[str, set[str]], module: str) -> set[str]:
    seen: set[str] = set()
    left = [module]
    while left:
        for other in graph[left.pop()] - seen:
            seen.add(other)
            left.append(other)
    return seen


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(imports()) == set()


def folders(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """How what lies in each folder, its modules and its folders, imports each other: of two modules
    the first parts in which their names differ."""
    found: dict[str, set[str]] = {}
    for module, others in graph.items():
        for other in others:
            ours, theirs = module.split("."), other.split(".")
            for depth, (one, another) in enumerate(zip(ours, theirs, strict=False)):
                if one != another:
                    found.setdefault(".".join(theirs[: depth + 1]), set())
                    found.setdefault(".".join(ours[: depth + 1]), set()).add(
                        ".".join(theirs[: depth + 1])
                    )
                    break
    return found


def test_no_folder_imports_itself_by_way_of_others() -> None:
    assert cycles(folders(imports())) == set()


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d2"}, "d2": set()}
    assert cycles(graph) == {("b", "c")}
    modules = {"a.b.one": {"a.c"}, "a.b.two": set(), "a.c": {"a.b.two"}}
    assert cycles(folders(modules)) == {("a.b", "a.c")}


def test_imports_go_one_way() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if module.count(".") and other.count(".")
        if other.split(".")[1] in ABOVE.get(module.split(".")[1], ())
    ]
    assert wrong == []


def test_memory_layer_names_no_store() -> None:
    """Papers are named, for what they invented; modules of stores/ are not imported, and no
    attribute is there for one of them. `layout` may name stores with words."""
    wrong = []
    for module, path in sources().items():
        if not module.startswith("limpet.shm"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            named = getattr(node, "id", None) or getattr(node, "attr", None)
            named = named or getattr(node, "name", None)
            if isinstance(named, str) and set(named.lower().split("_")) & STORE_WORDS:
                wrong.append(f"{module}: {named}")
    assert sorted(set(wrong)) == []


STORE_WORDS: Final = frozenset(
    (
        "tx",
        "rtx",
        "dtx",
        "fusee",
        "swarm",
        "sherman",
        "rcuckoo",
        "loco",
        "clover",
        "pdpm",
        "channel",
    )
)


def classes_of_stores() -> dict[str, type]:
    found = {}
    for module in sources():
        if module.startswith("limpet.stores"):
            for _, cls in inspect.getmembers(importlib.import_module(module), inspect.isclass):
                if cls.__module__ == module:
                    found[f"{module.removeprefix('limpet.stores.')}.{cls.__qualname__}"] = cls
    return found


def levels(cls: type) -> int:
    """Classes of limpet from this one on to `object`, along the longest line."""
    above = [levels(base) for base in cls.__bases__ if base.__module__.startswith("limpet.")]
    return 1 + max(above, default=0)


LARGE: Final = ("asyncio", "limpet.adapters", "limpet.bench", "limpet.fault", "rich") + (
    ("atomics", "cffi") if limpet.build == "compiled" else ()
)
LIGHT: Final = {
    f"limpet.stores.{name}" for name in ("channels", "channels.of_pool", "fusee", "fusee.links")
}
"""Of the packages of stores and channels: the calls of a pool, and a layout."""


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("import limpet", (*LARGE, "click", "limpet.cli")),
        (
            "import limpet.__main__ as m; m.main(['ls', '--json'], 'x', standalone_mode=False)",
            LARGE,
        ),
    ],
    ids=["import limpet", "limpet ls"],
)
def test_what_is_not_used_is_not_imported(program: str, unused: tuple[str, ...]) -> None:
    """No kind of store, channel, cache or transaction, and nothing that is large."""
    code = f"{program}\nimport sys\nprint('imported:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.rpartition("imported:")[2].split())
    assert "limpet.shm.pool" in imported
    assert {
        name for name in imported if f"{name}.".startswith(tuple(f"{x}." for x in unused))
    } == set()
    packages = "|".join(
        info.name
        for info in pkgutil.iter_modules(stores.__path__)
        if info.ispkg and info.name != "core"
    )
    assert {one for one in imported if re.match(rf"limpet\.stores\.({packages})\b", one)} == LIGHT


def test_no_class_of_stores_is_deep() -> None:
    found = {name for name, cls in classes_of_stores().items() if levels(cls) > LEVELS}
    assert found == set(), f"more than {LEVELS} classes to `object`"


def test_every_package_says_what_is_in_it() -> None:
    silent = []
    for info in pkgutil.walk_packages(limpet.__path__, "limpet."):
        if info.ispkg:
            text = ast.get_docstring(ast.parse((_file(info)).read_text())) or ""
            if len(text.split()) < 5:
                silent.append(info.name)
    assert silent == []


def _file(info: Any) -> Path:
    return ROOT.joinpath(*info.name.split(".")[1:], "__init__.py")


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by their names: a plain `pytest` would stop at the second one."""
    paths = Path(__file__).parent.rglob("test_*.py")
    names = Counter(path.name for path in paths)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_kind_is_found_by_its_name() -> None:
    """Each part of a kind's name is in the path of its module, or in the name of its class."""
    kinds = {**registry.KINDS, **registry.UNRECOVERED, **registry.UNPROVED}
    found = set()
    for name, kind in kinds.items():
        where = f"{kind.module}.{kind.name}".lower().replace("_", "")
        if kind.fixed:  # another kind with other parameters
            continue
        if not all(part in where for part in name.split("-")):
            found.add(name)
    assert found == set()


def test_modules_with_undeclared_constants_are_there() -> None:
    assert set(today.UNDECLARED) <= set(compiled_constants.compiled_modules())


@pytest.mark.parametrize("module", compiled_constants.compiled_modules())
def test_constants_of_compiled_modules_are_declared(module: str) -> None:
    found = compiled_constants.undeclared(compiled_constants.compiled_modules()[module])
    known = today.UNDECLARED.get(module, "").split()
    assert sorted(set(found) - set(known)) == [], "declare them in the .pxd"
    assert sorted(set(known) - set(found)) == [], "mended: take them out of the table"


def test_undeclared_constants_are_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "from limpet.shm.endpoint.words import SLAB, TENTATIVE\n"
        "FIRST: int = 3\nSECOND = FIRST << 4\nUNUSED = 1\nTEXT = 'x'\nTHIRD, FOURTH = (3, 4)\n"
        "def function():\n    return FIRST + SECOND + SLAB + TENTATIVE + THIRD + FOURTH, TEXT\n"
    )
    pxd = "cimport cython\nfrom there cimport (\n    Thing,\n    TENTATIVE,\n)\ncdef int FIRST\n"
    source.with_suffix(".pxd").write_text(pxd)
    assert compiled_constants.undeclared(source) == ["FOURTH", "SECOND", "SLAB", "THIRD"]
    star = "from limpet.shm.endpoint.words cimport *\n"
    source.with_suffix(".pxd").write_text(star + "cdef int FIRST\ncdef int FOURTH\n")
    assert compiled_constants.undeclared(source) == ["SECOND", "THIRD"]


@pytest.mark.parametrize("module", compiled_constants.compiled_modules())
def test_constants_mean_the_same_in_c(module: str) -> None:
    assert compiled_constants.clashes(compiled_constants.compiled_modules()[module]) == []


def test_clashes_of_constants_are_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "from limpet.stores.core.status import AGAIN, DONE\n"
        "from limpet.stores.sherman.layout import ENTRY_SIZE\nPUT = 7\nLAST = 7\n"
    )
    status = "from limpet.stores.core.status cimport "
    for pxd, wrong in (
        (status + "AGAIN, DONE\ncdef int LAST\n", []),
        (status + "*\n", ["PUT"]),
        (status + "AGAIN, PUT as LAST\ncdef int GONE\n", ["GONE", "LAST"]),
        ("from limpet.stores.transactions.layout cimport *\n", ["ENTRY_SIZE"]),
        (status + "AGAIN\nfrom limpet.stores.core.status cimport AGAIN, EXISTS as DONE\n",
         ["AGAIN", "DONE"]),
    ):  # fmt: skip
        source.with_suffix(".pxd").write_text(pxd)
        assert compiled_constants.clashes(source) == wrong, pxd


@pytest.mark.parametrize("module", compiled_constants.numbers())
def test_constants_that_c_is_told_are_those_of_the_module(module: str) -> None:
    values = vars(importlib.import_module(module))
    for name, number in compiled_constants.numbers()[module].items():
        assert (type(values[name]), values[name]) == (int, number), name


RECURSIONS: Final = {
    "limpet.shm.alloc.allocator": ("replenish_within", "once more each time nodes were added"),
    "limpet.stores.core.codecs": (
        "canonical with_floats", "by each_part, which is not compiled and so counted"
    ),
    "limpet.stores.race.check": (
        "_linked_below _keys_below _check_below mend_below", "the depth of a directory"
    ),
    "limpet.stores.sherman.write_set": (
        "_put _put_all _split _halve _raise_root link_above _merge", "LEVEL_MASK"
    ),
    "limpet.stores.swarm.max_register": ("write", "once more for each node that is lost"),
    "limpet.stores.swarm.safe_guess": (
        "_slow_path _withdraw", "once more for each tombstone that is lost with a node"
    ),
}  # fmt: skip
"""The functions of compiled modules that come to themselves, and what bounds how deep: there the
interpreter counts nothing, and the end of the stack is a signal."""


@pytest.mark.parametrize("module", compiled_constants.compiled_modules())
def test_recursion_in_compiled_code_is_bounded(module: str) -> None:
    found = compiled_constants.recursive(compiled_constants.compiled_modules()[module])
    assert found == set(RECURSIONS.get(module, ("",))[0].split())


def test_recursion_by_way_of_others_is_found(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("def a(): b()\ndef b(): c()\ndef c(): (lambda: b())()\n")
    assert compiled_constants.recursive(source) == {"b", "c"}
