"""Known-bad variants of compiled parts: modules run uncompiled, with functions replaced.

This is the one way to vary what is compiled, and what no class derived from it can (a compiled
class cannot be changed, and its `cdef` methods are called directly). A store, its parts and what
they are made of are run from their shipped sources, each importing those before it as they are made
here. No source is edited: a change replaces a function, a method or a constant by name as soon as
its module has been run, so those that import it have the replacement. A name that is not there any
more fails at once. What is not compiled is replaced where it is, by `monkeypatch`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest

import limpet
from limpet.stores import pool as stores_pool

FOLDER: Final = Path(limpet.__file__).parent


def _in(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


INLINE: Final = ("stores/core/records", "stores/core/inline")
LOCO: Final = (
    *INLINE,
    "stores/race/batch",
    *_in(
        "stores/loco",
        "parameters local_index data_array lookup writer repair check locking batch_updates store",
    ),
)
RCUCKOO: Final = (
    *INLINE,
    *_in("stores/rcuckoo", "layout rows locks search lookup repair check writer store"),
)
TRANSACTIONS: Final = (
    *INLINE,
    *_in("stores/transactions", "staged lllock entry_log log participant"),
    *_in("stores/sherman", "fences page"),
    *_in("stores/transactions", "tx_object parts try_commit reads repair"),
    *_in("stores/sherman", "routes check trees tx_trees scans leaf_writer write_set"),
    "stores/transactions/commit",
    *_in("stores/sherman", "tree_keys transactional"),
    *_in("stores/rtx", "cut uses execution transaction"),
)
IN_PLACE: Final = (
    *INLINE,
    *_in("stores/transactions", "staged entry_log locks"),
    "stores/baselines/dtx/log",
    *_in("stores/sherman", "fences page"),
    *_in(
        "stores/sherman",
        "routes check trees tx_trees scans leaf_writer write_set in_place_trees "
        "in_place_commit in_place_write_set in_place_check plain",
    ),
    *_in("stores/baselines/dtx", "sherman_commit sherman"),
)
REPLICATED: Final = (
    "shm/clients/unique_ids",
    "stores/core/records",
    *_in("stores/race", "index glance batch slots batch_puts splitter check hash_store"),
    *_in(
        "stores/fusee",
        "log cache tables restoring index glance snapshot slots batch_rounds growth check",
    ),
)
FUSEE: Final = (
    *REPLICATED,
    "stores/fusee/store",
)
SWARM: Final = (
    *REPLICATED,
    *_in(
        "stores/swarm",
        "register replica row max_register safe_guess abd key_register cache check finder "
        "fast_reads batches store",
    ),
)


class Change(NamedTuple):
    """`name`, a function, a constant, or "Class.method", of a module; `make(what it was)` makes
    what it is. Modules of stores are named from their folder on."""

    module: str
    name: str
    make: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A store with these changes."""

    name: str
    changes: tuple[Change, ...] = ()


UNCHANGED: Final = Mutant("unchanged")
"""The shipped source, run as the mutants are."""


def replaced(module: str, name: str, by: Any) -> Change:
    """A change that does without what it was."""
    return Change(module, name, lambda original: by)


def uncompiled(modules: Sequence[str], *changes: Change) -> dict[str, Any]:
    """These modules, run uncompiled and changed, by the names that changes have for them."""
    left = list(changes)
    made = {}
    with mock.patch.dict(sys.modules):
        for path in modules:
            name = "limpet." + path.replace("/", ".")
            module = sys.modules[name] = types.ModuleType(name)
            made[path.removeprefix("stores/")] = module
            exec(_code(path), module.__dict__)
            for change in [change for change in left if made.get(change.module) is module]:
                left.remove(change)
                _make(module, change)
    assert not left, f"no such modules: {left}"
    return made


@functools.cache
def _code(path: str) -> types.CodeType:
    source = FOLDER / f"{path}.py"
    return compile(source.read_text(), source, "exec")


def _make(module: types.ModuleType, change: Change) -> None:
    owner: Any = module
    *classes, name = change.name.split(".")
    for cls in classes:
        owner = vars(owner)[cls]
    setattr(owner, name, change.make(inspect.getattr_static(owner, name)))


@contextlib.contextmanager
def store_in_force(
    modules: Sequence[str], store: tuple[str, str], changes: Sequence[Change]
) -> Iterator[dict[str, Any]]:
    """Have stores made meanwhile be of a class of one of these modules, with these changes; the
    modules."""
    made = uncompiled(modules, *changes)
    module, cls = store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores_pool, "store_class", lambda kind: getattr(made[module], cls))
        yield made


class Instead:
    """Another object, but for these attributes; for a method that is to have it in the place of
    that one."""

    def __init__(self, other: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes, other=other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.other, name)


def with_part(part: str, **attributes: Any) -> Callable[[Any], Any]:
    """For a `Change`: the method as it was, called while a part of its object has these
    attributes."""

    def change(method: Any) -> Any:
        def run(self: Any, *arguments: Any) -> Any:
            before = getattr(self, part)
            setattr(self, part, Instead(before, **attributes))
            try:
                return method(self, *arguments)
            finally:
                setattr(self, part, before)

        return run

    return change


def nothing(*arguments: Any) -> None:
    """A step that is left out."""


def always(*arguments: Any) -> bool:
    """A look that finds all as it should be."""
    return True


def never(*arguments: Any) -> bool:
    """A look that finds nothing."""
    return False
