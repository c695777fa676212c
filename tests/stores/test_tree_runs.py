"""`put_many` of a tree: the pairs of a leaf are put at once; a run splits it as often as needed."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.rtx import UNCHANGED, Mutant, in_force
from kit.mutants.steps import require_caught
from kit.mutants.uncompiled import Change, replaced
from kit.processes import gather
from kit.stores import sound
from kit.trees import KIND, LeafSplit, RootSplit, nodes

import limpet
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.operations import KEY, NEW, OLD, Operation, demand
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.core.base import Store

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


@pytest.mark.parametrize("first", [0, 40, 250])
def test_a_run_makes_all_its_leaves_by_few_transactions(pools: Any, first: int) -> None:
    """In an empty tree, in the midst of others, and after all others; nodes above are split too."""
    store = pools(node_size="4MiB").store(KIND, name="test", **SMALL)
    others = [b"%03d" % number for number in range(250)] if first else []
    for key in others:
        store.put(key, VALUE)
    before, leaves = store.stats(), nodes(store)
    keys = [b"%03d+%03d" % (first, number) for number in range(280)]
    store.put_many([(key, VALUE) for key in keys])
    after = store.stats()
    full = (320 - 40 - 14) // (8 + 7 + 24)
    assert nodes(store) - leaves <= 1.35 * len(keys) / full + 3
    assert after["round_trips"] - before["round_trips"] < 60
    assert [key for key, _ in store.scan()] == sorted(others + keys)
    sound(store)


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
def test_a_run_fills_what_memory_there_is(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    store = pool.store(KIND, name="test", **SMALL)
    keys = [b"%06d" % number for number in range(100_000)]
    with pytest.raises(limpet.StoreFull):
        store.put_many([(key, VALUE) for key in keys])
    sound(store)
    found = [key for key, _ in store.scan()]
    assert found == keys[: len(found)]
    left = keys[len(found) :]
    with pytest.raises(limpet.StoreFull):
        Store.put_many(store, [(key, VALUE) for key in left])  # one by one
    assert store.get(left[len(found) // 50]) is None
    store.delete_many(found)
    sound(store)


def puts_all_in_one_leaf(keys: list[bytes], high: bytes, first: int) -> int:
    return len(keys)


BEYOND_ITS_LEAF: Final = Mutant(
    "run-goes-on-beyond-its-leaf",
    (replaced("sherman/write_set", "bisect_left", puts_all_in_one_leaf),),
)


def _put_runs(pools: Any) -> None:
    """One that ends beyond the leaf in which it begins."""
    store = pools(node_size="4MiB").store(KIND, name="test", **SMALL)
    keys = [b"%03d" % number for number in range(60)]
    for key in keys:
        store.put(key, VALUE)
    more = [b"%03d+" % number for number in range(20, 50)]
    store.put_many([(key, VALUE) for key in more])
    store.check()
    assert [key for key, _ in store.scan()] == sorted(keys + more)


def test_a_run_ends_where_its_leaf_ends(pools: Any) -> None:
    require_caught(in_force, UNCHANGED, BEYOND_ITS_LEAF, _put_runs, pools)


# ---- kills ---------------------------------------------------------------------------------------


def _put_run(pool: Any, kv: Any) -> None:
    """All keys that are there, as they are, and the new one."""
    kv.put_many([(key, OLD) for key in sorted({*kv, KEY})])


FRESH: Final = tuple(KEY + b"%02d" % number for number in range(100))


def _put_fresh(pool: Any, kv: Any) -> None:
    """The new key, and others that fill some leaves after it."""
    kv.put_many([(KEY, NEW), *((key, OLD) for key in FRESH)])


def _all_or_none(pool: Any, kv: Any) -> None:
    """Demand that all pairs of a tree are there, or none: they are put by one transaction."""
    for tree in range(len(kv.trees.roots)):
        some = [key for key in FRESH if kv.trees.tree_of(key) == tree]
        found = sum(value is not None for value in kv.get_many(some))
        demand(found in (0, len(some)), f"{found} pairs of {len(some)} are there")


class Fresh(LeafSplit):
    """The run that is put has keys that the scene does not know of."""

    def inspect(self, clients: int) -> None:
        _all_or_none(self.pool, self.store)
        self.store.delete_many(FRESH)
        super().inspect(clients)


class FreshRoot(Fresh):
    """In a tree of one leaf."""

    count = 1


PUT_FRESH: Final = Operation(
    "put new leaves", _put_fresh, None, NEW, fresh=True, finish=_all_or_none
)
FRESH_SCENES: Final = {"root": FreshRoot, "leaves": Fresh}
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


@pytest.mark.exhaustive("more scenes", quick=["leaves"])
@compiled_only
@pytest.mark.parametrize("scene", FRESH_SCENES)
def test_a_client_killed_as_it_makes_many_leaves_has_made_all_or_none(scene: str) -> None:
    result = Matrix(KIND, 60, FRESH_SCENES[scene]).killed(PUT_FRESH)
    assert result.failures == ()
    assert result.steps > 100
    assert {"installing", "releasing"} <= set(result.seen)


@compiled_only
@pytest.mark.parametrize("fence", ["wait", "kill"])
def test_a_client_that_stands_still_as_it_makes_many_leaves_is_worked_around(fence: str) -> None:
    result = Matrix(KIND, 24, Fresh).stopped(PUT_FRESH, fence)
    assert result.failures == ()


@pytest.mark.exhaustive("every step of two clients")
@compiled_only
def test_a_client_that_carries_many_leaves_on_may_be_killed_too() -> None:
    result = Matrix(KIND, 24, Fresh).killed_twice(PUT_FRESH)
    assert result.failures == ()
    assert result.next_tried > 2


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


@pytest.mark.parametrize("size", ["2MiB", "4MiB"])
@pytest.mark.parametrize("node_size", [1024, 2048, 4096, 8192, 32768])
def test_a_run_ends_whatever_blocks_the_nodes_are_in(pools: Any, size: str, node_size: int) -> None:
    store = pools(node_size=size).store(
        KIND, name="test", node_size=node_size, key_size=16, value_size=32
    )
    pairs = [(b"%06d" % number, VALUE) for number in range(6000)]
    store.put_many(pairs[:10])
    store.put_many(pairs)
    assert list(store.scan()) == pairs
    sound(store)


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
def test_a_run_uses_the_last_memory(pools: Any) -> None:
    store = pools(node_size="2MiB").store(KIND, name="test", **SMALL)
    pairs = [(b"%06d" % number, VALUE) for number in range(60_000)]
    with pytest.raises(limpet.StoreFull):
        store.put_many(pairs)
    put = list(store.scan())
    assert put == pairs[: len(put)]
    more = 0
    with contextlib.suppress(limpet.StoreFull):
        for key, value in pairs[len(put) :]:
            store.put(key, value)
            more += 1
    assert more < 64, "several leaves had room"
    sound(store)


# ---- splits for one new entry -------------------------------------------------------------------


def fences(store: Any) -> list[bytes]:
    """Where the leaves begin."""
    return [store.trees.routes[0].low_at(key) or b"" for key in store]


def test_a_split_for_one_entry_cuts_where_any_split_does(pools: Any) -> None:
    """Keys and values of many sizes, in random order, and in ascending order."""

    def gathers(middle: Any) -> Any:
        return lambda self, page, index, key, size: 0

    def filled(order: Callable[[list[bytes]], object]) -> list[bytes]:
        store = pools(node_size="16MiB").store("rtx-sherman", name="s", key_size=64, value_size=64)
        draw = random.Random(1)
        keys = [b"%06d" % number * draw.randint(1, 10) for number in range(600)]
        order(keys)
        for key in keys:
            store.insert(key, draw.randbytes(draw.randint(0, 64)))
        sound(store)
        assert list(store) == sorted(keys)
        return fences(store)

    gathering = Mutant("gathers", (Change("sherman/write_set", "WriteSet._middle", gathers),))
    for order in (lambda keys: random.Random(2).shuffle(keys), list.sort):
        found = filled(order)
        with in_force(gathering):
            assert filled(order) == found


def test_a_client_guesses_where_its_own_splits_have_put_nodes(pools: Any) -> None:
    store = pools(node_size="16MiB").store("rtx-sherman", name="s")
    keys = [b"key %05d" % number for number in range(600)]
    for key in keys[:300]:
        store.insert(key, VALUE)
    before = store.stats()["round_trips"]
    for key in keys[300:]:
        store.insert(key, VALUE)
    assert store.stats()["round_trips"] - before < 4 * 300
