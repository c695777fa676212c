"""Parameters of stores on the replicated index, and the sizes of keys and values that they take."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kit.stores import REPLICAS_APART

import limpet


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("replicas", "index_replicas")
            for value in (0, -1, 4, 8, True, 2.0, "2")
        ],
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


def test_the_index_has_as_many_replicas_as_the_objects_unless_told_otherwise(pools: Any) -> None:
    pool = pools(nodes=3)
    alike = pool.store("fusee", name="alike", capacity=100, replicas=3)
    assert alike.parameters.index_replicas == 3
    apart = pool.store("fusee", name="apart", capacity=100, replicas=3, index_replicas=2)
    found = [(store.losses_survived, store.replicas) for store in (alike, apart)]
    assert found == [(2, 3), (1, 3)]
    pool.store("fusee", name="apart", index_replicas=2)
    with pytest.raises(limpet.StoreMismatch, match="index_replicas=2, not 3"):
        pool.store("fusee", name="apart", index_replicas=3)
    # of a store that was made before there was the parameter
    earlier = dataclasses.asdict(alike.parameters)
    del earlier["index_replicas"]
    assert type(alike.parameters)(**earlier) == alike.parameters


@pytest.mark.parametrize(("index_replicas", "replicas"), [(1, 1), (2, 2), (3, 3), *REPLICAS_APART])
def test_keys_and_values_of_every_size(pools: Any, index_replicas: int, replicas: int) -> None:
    pool = pools(nodes=3)
    store = pool.store(
        "fusee", name="test", capacity=100, replicas=replicas, index_replicas=index_replicas
    )
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
