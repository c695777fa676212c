"""Modules run uncompiled, with functions replaced: for known-bad variants of compiled parts.

A store, its parts and what they are made of are run again from the shipped sources, each importing
those before it as they are made here. A change replaces a function, a method or a constant as soon
as its module has been run, so those that import it have the replacement.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import limpet

FOLDER: Final = Path(limpet.__file__).parent
CORE: Final = (
    "shm/clients/unique_ids", "stores/records", "stores/race/index", "stores/race/slots",
    "stores/race/splitter", "stores/race/check", "stores/race/hash_store",
)  # fmt: skip
REPLICATED: Final = (
    *CORE,
    *(
        f"stores/fusee/{name}"
        for name in (
            "log", "cache", "reconcile", "tables", "index", "snapshot", "slots", "growth",
            "check", "restoring",
        )
    ),
)  # fmt: skip
FUSEE: Final = (*REPLICATED, "stores/fusee/store")
SWARM: Final = (
    *REPLICATED,
    *(
        f"stores/swarm/{name}"
        for name in (
            "words", "register", "buffers", "replica", "quorum", "row", "write_back",
            "max_register", "timestamp_lock", "protocol", "insistence", "safe_guess", "abd",
            "tombstone", "recycling", "key_register", "registers", "cache", "check", "level",
            "unmapping", "refilling", "finder", "new_register", "write_steps", "store",
        )
    ),
)  # fmt: skip


class Change(NamedTuple):
    """`name`, a function, a constant, or "Class.method", of a module; `make(what it was)` makes
    what it is."""

    module: str
    name: str
    make: Callable[[Any], Any]


def replaced(module: str, name: str, by: Any) -> Change:
    """A change that does without what it was."""
    return Change(module, name, lambda original: by)


def uncompiled(modules: Sequence[str], cls: str, *changes: Change) -> Any:
    """A class of the last of these modules, all of them run uncompiled and changed."""
    left = list(changes)
    with mock.patch.dict(sys.modules):
        for path in modules:
            name = "limpet." + path.replace("/", ".")
            module = sys.modules[name] = types.ModuleType(name)
            text = (FOLDER / f"{path}.py").read_text()
            # What the compiled base class counts, it alone can write.
            text = re.sub(r"self\.(operations|retries) \+= .*", "pass", text)
            exec(compile(text, f"{path}.py", "exec"), module.__dict__)
            for change in [change for change in left if path == f"stores/{change.module}"]:
                left.remove(change)
                _make(module, change)
    assert not left, f"no such modules: {left}"
    return getattr(module, cls)


def _make(module: types.ModuleType, change: Change) -> None:
    owner: Any = module
    *classes, name = change.name.split(".")
    for cls in classes:
        owner = vars(owner)[cls]
    setattr(owner, name, change.make(vars(owner)[name]))


def room_of(store: Any, key: bytes) -> int:
    """Which slot an insert of the key would choose now."""
    index, place = store.index, store.place
    index.look_up(place, key)
    return int(index.address(place, index.room(place)))


def backup_of(store: Any, slot: int, k: int) -> int:
    """Where that slot of the key that was looked up last is on backup `k`."""
    return int(store.tables.backup(slot, store.place.head, k))
