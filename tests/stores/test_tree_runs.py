"""`put_many` of a tree: the pairs of a leaf are put at once; a run splits it as often as needed."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any, Final

import pytest
from kit.processes import gather
from kit.stores import sound
from kit.trees import KIND, LeafSplit, RootSplit, nodes

from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.operations import KEY, OLD, Operation
from limpet.shm.endpoint.fabric import BUILD

COMPILED: Final = BUILD == "compiled"
SMALL: Final = {"node_size": 320, "key_size": 16, "value_size": 32}
LARGE_NODES: Final = {"node_size": 4096}
VALUE: Final = b"v" * 24


def pairs_of(source: random.Random, size: int) -> list[tuple[bytes, bytes]]:
    """Pairs with neighbours in order, or here and there; some of the values are in extents."""
    first = source.randrange(20_000)
    numbers = (
        range(first, first + size)
        if source.random() < 0.4
        else [source.randrange(20_000) for _ in range(size)]
    )
    lengths = (0, 5, 30, 32, 33, 200)
    return [(b"%05d" % number, os.urandom(source.choice(lengths))) for number in numbers]


@pytest.mark.parametrize("sizes", [SMALL, LARGE_NODES])
def test_batches_of_any_keys_are_as_in_a_dict(pools: Any, sizes: dict[str, int]) -> None:
    store = pools(nodes=2, node_size="8MiB").store(KIND, name="test", **sizes)
    source, expected = random.Random(1), dict[bytes, bytes]()
    for turn in range(40 if COMPILED else 8):
        pairs = pairs_of(source, source.choice((1, 2, 10, 100, 600)))
        store.put_many(pairs)
        expected.update(pairs)
        for key in source.sample(sorted(expected), min(len(expected), 20)):
            store.delete(key)
            del expected[key]
        if turn % 8 == 7:
            assert list(store.scan()) == sorted(expected.items())
    sound(store)


@pytest.mark.parametrize("many", [False, True])
def test_keys_in_ascending_order_fill_the_leaves(pools: Any, many: bool) -> None:
    store = pools(node_size="4MiB").store(KIND, name="test", **SMALL)
    keys = [b"%05d" % number for number in range(600)]
    if many:
        store.put_many([(key, VALUE) for key in keys])
    else:
        for key in keys:
            store.insert(key, VALUE)
    full = (320 - 40 - 10) // (8 + 5 + 24)
    assert list(store.scan()) == [(key, VALUE) for key in keys]
    assert nodes(store) <= 1.3 * len(keys) / full
    sound(store)


def test_pairs_of_one_leaf_cost_what_one_insert_costs(pools: Any) -> None:
    store = pools(node_size="4MiB").store(KIND, name="test")
    store.put(b"first", VALUE)
    store.put(b"second", VALUE)
    before = store.stats()
    store.put_many([(b"k%d" % number, VALUE) for number in range(8)])
    after = store.stats()
    assert after["ops"] - before["ops"] == 8
    assert (
        after["round_trips"] - before["round_trips"] == 3
    )  # it knows the pointer: it put it there
    assert after["cas"] - before["cas"] == 3
    assert 1024 <= after["bytes_written"] - before["bytes_written"] < 1200


def test_a_leaf_is_split_into_many_by_one_transaction(pools: Any) -> None:
    store = pools(node_size="4MiB").store(KIND, name="test", **SMALL)
    for number in range(40):
        store.put(b"%02d" % number, VALUE)
    before, leaves = store.stats(), nodes(store)
    pairs = [(b"05 %02d" % number, VALUE) for number in range(14)]
    store.put_many(pairs)
    after = store.stats()
    assert nodes(store) >= leaves + 2
    assert store.get_many([key for key, _ in pairs]) == [VALUE] * len(pairs)
    assert after["round_trips"] - before["round_trips"] < 4 * len(pairs)
    sound(store)


# ---- kills ---------------------------------------------------------------------------------------


def _put_run(pool: Any, kv: Any) -> None:
    """All keys that are there, as they are, and the new one."""
    kv.put_many([(key, OLD) for key in sorted({*kv, KEY})])


PUT_RUN: Final = Operation("put a run", _put_run, None, OLD, fresh=True)
SCENES: Final = {"root": RootSplit, "leaves": LeafSplit}
compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")


@pytest.mark.exhaustive("more scenes", quick=["leaves"])
@compiled_only
@pytest.mark.parametrize("scene", SCENES)
def test_a_client_killed_in_a_run_has_put_each_pair_or_not(scene: str) -> None:
    result = Matrix(KIND, 60, SCENES[scene]).killed(PUT_RUN)
    assert result.failures == ()
    assert result.steps > 100
    assert {"leaf-locked", "held"} <= set(result.seen)


@pytest.mark.exhaustive("every step of two clients")
@compiled_only
def test_a_client_that_carries_a_run_on_may_be_killed_too() -> None:
    result = Matrix(KIND, 24, LeafSplit).killed_twice(PUT_RUN)
    assert result.failures == ()
    assert result.next_tried > 2


@compiled_only
@pytest.mark.parametrize("fence", ["wait", "kill"])
def test_a_client_that_stands_still_in_a_run_is_worked_around(fence: str) -> None:
    result = Matrix(KIND, 24, LeafSplit).stopped(PUT_RUN, fence)
    assert result.failures == ()


def test_processes_put_runs_of_the_same_keys(pools: Any) -> None:
    store = pools(nodes=2, node_size="8MiB").store(KIND, name="test", **SMALL)
    keys = [b"%04d" % number for number in range(400)]
    rounds = 20 if COMPILED else 2

    def work(seed: int) -> int:
        source = random.Random(seed)
        for _ in range(rounds):
            first = source.randrange(300)
            some = keys[first : first + 100]
            store.put_many([(key, b"%d" % seed + key) for key in some])
            for key in source.sample(some, 40):
                with contextlib.suppress(KeyError):  # of another process's delete
                    store.delete(key)
        store.put_many([(key, b"%d" % seed + key) for key in keys])
        return rounds

    assert gather(lambda: work(1), lambda: work(2), lambda: work(3)) == [rounds] * 3
    found = list(store.scan())
    assert [key for key, _ in found] == keys
    assert all(value[1:] == key and value[:1] in b"123" for key, value in found)
    sound(store)
