"""Keys and values of few bytes, and of none, come and go in every order."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from store_tools import sound

from limpet.shm.fabric import BUILD

TREES: Final = ("rtx-sherman", "sherman", "dtx-sherman")
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
    sound(store)


@pytest.mark.parametrize("seed", [1, 2])
def test_keys_and_values_of_few_bytes_come_and_go(pools: Any, kind: str, seed: int) -> None:
    come_and_go(pools().store(kind, name="test", capacity=100), seed)


@pytest.mark.parametrize("tree", TREES)
def test_empty_key_with_an_empty_value_stays_in_its_leaf(pools: Any, tree: str) -> None:
    """Its entry has no bytes, so it began where another one did, and stayed there when that went:
    every operation on the key raised AddressError from then on."""
    store = pools().store(tree, name="test")
    store.put(b"a", b"0123456789")
    store.put(b"", b"")
    store.delete(b"a")
    store.check()
    assert store.get(b"") == b""
    store.put(b"", b"new")
    store.put(b"", b"")
    store.delete(b"")
    assert len(store) == 0
    sound(store)
