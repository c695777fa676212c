"""Keys and values of few bytes, and of none, come and go in every order."""

from __future__ import annotations

from typing import Any, Final

import pytest
from kit.stores import come_and_go, sound

TREES: Final = ("rtx-sherman", "sherman", "dtx-sherman")


@pytest.mark.parametrize("seed", [1, 2])
def test_keys_and_values_of_few_bytes_come_and_go(pools: Any, kind: str, seed: int) -> None:
    store = pools().store(kind, name="test", capacity=100)
    come_and_go(store, seed)
    sound(store)


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
