"""Shared parts of tests of stores and channels: sizes, keys, and the check afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.shm.endpoint.fabric import BUILD, hash64

KEY_MAX: Final = 65535
OUT_OF_PLACE: Final[Mapping[str, Mapping[str, Any]]] = {
    "rcuckoo": {"value_size": 0, "key_size": 24},
    "loco": {"value_size": 0, "key_size": 16, "locks": 16},
}
"""By kind, parameters with which every value, but an empty one, is in an object."""

_TREES: Final = ("rtx-sherman", "sherman", "dtx-sherman")
_GROWING: Final = ("race", "rtx-race", "dtx-race", "race-locks")
SLACK: Final[Mapping[str, float]] = dict.fromkeys((*_TREES, *_GROWING), 0.1)
"""By kind, the share by which numbers of keys that fill the memory may differ: nodes of a tree take
the same memory as extents, and are split in different ways; subtables stay when keys go."""

REPLICAS_APART: Final = ((1, 2), (2, 1), (3, 2))
"""Of a store of kind fusee, replicas of the index and of objects, where these differ."""


def key_max(store: Any) -> int:
    """Bytes of the longest key that the store takes."""
    return int(getattr(store.parameters, "key_size", KEY_MAX))


def accounted(pool: Any) -> dict[str, int]:
    """Audit a pool, in which nothing may be leaked or in the client journal."""
    audit = dict(pool.audit())
    assert sum(audit[name] for name in audit if name != "total") == audit["total"]
    assert audit["leaked"] == audit["held"] == 0, audit
    return audit


def checked(store: Any) -> dict[str, int]:
    """Check the store, audit its pool."""
    store.check()
    return accounted(store.pool)


def sound(store: Any) -> dict[str, int]:
    """Recover the dead; then the same."""
    store.recover()
    return checked(store)


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


def nothing_leaked(pool: Any) -> None:
    """After recovery, all memory of channels is accounted for."""
    pool.recover()
    accounted(pool)
    pool.channels.catalogue.check()


# ---- keys and values of few bytes ----

KEYS: Final = (b"", b"a", b"b", b"ab", b"abcdefgh")
SIZES: Final = (0, 0, 1, 10, 40)
STEPS: Final = 300 if BUILD == "compiled" else 100


def come_and_go(store: Any, seed: int, steps: int = STEPS) -> None:
    """Random puts and deletes of such keys; after each, all is as in a dict."""
    rng = random.Random(seed)
    expected: dict[bytes, bytes] = {}
    for _ in range(steps):
        key = rng.choice(KEYS)
        if key in expected and rng.random() < 0.5:
            store.delete(key)
            del expected[key]
        else:
            expected[key] = rng.randbytes(rng.choice(SIZES))
            store.put(key, expected[key])
        assert {each: store.get(each) for each in KEYS} == {
            each: expected.get(each) for each in KEYS
        }
    assert dict(store.items()) == expected
    store.check()
