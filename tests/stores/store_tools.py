"""What the tests of stores share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64

KEY_MAX: Final = 65535
OUT_OF_PLACE: Final[Mapping[str, Mapping[str, Any]]] = {
    "rcuckoo": {"value_size": 0},
    "loco": {"value_size": 0, "key_size": 16, "locks": 16},
}
"""By kind, parameters with which every value, but an empty one, is in an object."""

_TREES: Final = ("rtx-sherman", "sherman", "dtx-sherman")
_GROWING: Final = ("race", "rtx-race", "dtx-race", "race-locks")
SLACK: Final[Mapping[str, float]] = dict.fromkeys((*_TREES, *_GROWING), 0.1)
"""By kind, the share by which numbers of keys that fill the memory may differ: nodes of a tree take
the same memory as extents, and are split in different ways; subtables stay when keys go."""


def key_max(store: Any) -> int:
    """Bytes of the longest key that the store takes."""
    return int(getattr(store.parameters, "key_size", KEY_MAX))


def sound(store: Any) -> dict[str, int]:
    """Recover the dead, check the store, audit its pool; nothing may be leaked or in hand."""
    store.recover()
    store.check()
    audit = store.pool.audit()
    assert sum(audit[name] for name in audit if name != "total") == audit["total"]
    assert audit["leaked"] == audit["held"] == 0, audit
    return dict(audit)


def linked(store: Any) -> int:
    """Bytes that the pairs of the pool's only store take, when all is sound."""
    return sound(store)["reachable"] - int(store.index_size())


def key_of(node: int, nodes: int = 2) -> bytes:
    """A key that is on the memory node of this number, in a pool of so many."""
    keys = (b"%d" % number for number in range(1000))
    return next(key for key in keys if (hash64(key) >> 32) * nodes >> 32 == node)


def once(work: Callable[[], object]) -> Callable[[], None]:
    """Does it at its first call, and nothing at others."""
    left = [work]

    def do() -> None:
        if left:
            left.pop()()

    return do
