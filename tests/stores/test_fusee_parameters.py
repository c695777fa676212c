"""Parameters of stores on the replicated index, and the sizes of keys and values that they take."""

from __future__ import annotations

from typing import Any

import pytest

import limpet


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("replicas", value) for value in (0, -1, 4, 8, True, 2.0, "2")],
        *[("cache_size", value) for value in (-1, 1 << 32, 1.5, True)],
        *[("cache_threshold", value) for value in (-0.1, 1.1, float("nan"), True, "0.5")],
        *[("sequential", value) for value in (1, None, "yes")],
        *[("capacity", value) for value in (0, -1, 1 << 40, 1.5, True)],
    ],
)
def test_what_cannot_be_is_refused(pools: Any, name: str, value: object) -> None:
    pool = pools(nodes=3)
    with pytest.raises(limpet.ParameterError, match=name):
        pool.store("fusee", name="test", **{"capacity": 100, name: value})
    assert not pool.stores()
    pool.store("fusee", name="test", capacity=100).put(b"k", b"v")


@pytest.mark.parametrize(("kind", "name"), [("fusee-cr", "sequential"), ("fusee-nc", "cache_size")])
def test_what_makes_a_variant_is_not_for_choice(pools: Any, kind: str, name: str) -> None:
    with pytest.raises(limpet.ParameterError, match=name):
        pools(nodes=3).store(kind, name="test", **{name: 0})


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_keys_and_values_of_every_size(pools: Any, replicas: int) -> None:
    pool = pools(nodes=3)
    store = pool.store("fusee", name="test", capacity=100, replicas=replicas)
    largest = pool.heap.value_max(replicas) - 64
    for key in (b"", b"k", bytes(65_535)):
        for size in (0, 1, 4096, min(largest, 1 << 20) - len(key)):
            store.put(key, b"z" * size)
            assert store.get(key) == b"z" * size
        if replicas > 1:
            with pytest.raises(limpet.ValueTooLarge):
                store.update(key, bytes(largest + 64))
        assert key in store
        store.delete(key)
        assert store.get(key) is None
    with pytest.raises(limpet.KeyTooLarge):
        store.put(bytes(65_536), b"v")
    store.check()
    assert pool.audit()["leaked"] == 0
