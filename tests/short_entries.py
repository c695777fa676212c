"""Random puts and deletes of keys and values of few bytes, and of none."""

from __future__ import annotations

import random
from typing import Any, Final

from limpet.shm.endpoint.fabric import BUILD

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
