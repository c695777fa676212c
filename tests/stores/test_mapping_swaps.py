"""Steps of `pool.dict` that read and write a key at one moment, and `get_slice` of stores."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.processes import gather

import limpet
from limpet.stores.registry import KINDS

SWAPPING = ("race", "rtx-race", "rtx-sherman", "fusee", "fusee-cr", "fusee-nc", "rcuckoo", "loco")
pytestmark = pytest.mark.exhaustive_in_pure("each kind runs the same lines", quick=["race"])


@pytest.fixture(params=SWAPPING)
def mapping(request: Any, pools: Any) -> Any:
    pool = pools(nodes=3, node_size="4MiB", clients=16)
    return pool.dict("d", store=request.param)


def test_update_with_loses_no_update_of_any_process(mapping: Any) -> None:
    mapping["n"] = 0

    def add() -> Any:
        for _ in range(100):
            mapping.update_with("n", lambda n: n + 1)
        return True

    gather(add, add, add)
    assert mapping["n"] == 300


def test_a_put_is_not_lost_to_a_swap_that_read_the_value_before_it(mapping: Any) -> None:
    """A put may count as overwritten only if the change that overtook it was blind."""
    mapping["k"] = [0]

    def mark() -> Any:
        for number in range(300):
            mapping.update_with("k", lambda found, number=number: [found[0], number])
        return True

    def put() -> Any:
        for number in range(1, 300):
            mapping["k"] = [number]
            assert mapping["k"][0] == number
        return True

    gather(mark, mark, put)


def test_update_with_begins_with_the_default(mapping: Any) -> None:
    assert mapping.update_with("k", lambda found: [*found, 1], []) == [1]
    assert mapping.update_with("k", lambda found: [*found, 2], []) == [1, 2]
    assert mapping["k"] == [1, 2]
    with pytest.raises(KeyError):
        mapping.update_with("missing", lambda found: found)


def test_processes_that_begin_a_key_with_the_default_lose_nothing(mapping: Any) -> None:
    def add() -> Any:
        for number in range(50):
            mapping.update_with(f"k{number}", lambda n: n + 1, 0)
        return True

    gather(add, add, add)
    assert set(mapping.values()) == {3}


def test_compare_and_set_goes_by_equal_values(mapping: Any) -> None:
    mapping["k"] = [1, 2.0]
    assert not mapping.compare_and_set("k", [1, 3], "other")
    assert mapping.compare_and_set("k", [1.0, 2], "mine")
    assert mapping["k"] == "mine"
    assert not mapping.compare_and_set("missing", None, 1)


def test_pop_gives_each_value_to_one_process(mapping: Any) -> None:
    """Each process adds numbers to lists and takes lists out: every number comes out once."""

    def work(first: int) -> Any:
        got = []
        chance = random.Random(first)
        for number in range(first, first + 60):
            key = f"k{chance.randrange(3)}"
            mapping.update_with(key, lambda found, number=number: [*found, number], [])
            got += mapping.pop(f"k{chance.randrange(3)}", [])
        return got

    taken = gather(*(lambda first=first: work(first) for first in (0, 1000, 2000)))
    left = [number for value in mapping.values() for number in value]
    assert sorted(itertools.chain(left, *taken)) == sorted(
        number for first in (0, 1000, 2000) for number in range(first, first + 60)
    )


def test_popitem_gives_each_entry_once(mapping: Any) -> None:
    mapping.update({number: -number for number in range(60)})

    def take() -> Any:
        got = []
        while True:
            try:
                got.append(mapping.popitem())
            except KeyError:
                return got

    found = itertools.chain(*gather(take, take, take))
    assert sorted(found) == [(number, -number) for number in range(60)]


def test_swap_that_is_killed_happened_or_did_not(pools: Any) -> None:
    from kit.processes import dies_at

    pool = pools(nodes=3, node_size="4MiB", clients=16)
    mapping = pool.dict("d", codec="bytes")
    fuse, died = 0, True
    while died:
        mapping[b"k"] = b"old"
        fuse += 1
        died = dies_at(pool, fuse, lambda: mapping.compare_and_set(b"k", b"old", b"new"))
        assert mapping[b"k"] in (b"old", b"new")
        assert mapping.pop(b"k") in (b"old", b"new")
    assert fuse > 5
    pool.recover()
    assert pool.audit()["leaked"] == 0
    mapping.store.check()


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in SWAPPING])
def test_kind_without_the_step_says_so(pools: Any, kind: str) -> None:
    mapping = pools(node_size="8MiB", nodes=3).dict("d", store=kind, codec="bytes")
    mapping[b"k"] = b"1"
    with pytest.raises(
        limpet.StoreError, match="race, rtx-race, rtx-sherman, fusee, rcuckoo and loco do"
    ):
        mapping.compare_and_set(b"k", b"1", b"2")
    assert mapping.setdefault(b"k", b"3") == b"1"
    assert mapping.pop(b"k") == b"1"
    with pytest.raises(KeyError):
        mapping.pop(b"k")


@pytest.mark.parametrize("size", [0, 1, 7, 100, 5000, 300_000])
def test_slice_of_a_value_is_that_of_its_bytes(pools: Any, size: int) -> None:
    store = pools(node_size="4MiB").store("race")
    value = random.Random(size).randbytes(size)
    store.put(b"key", value)
    for start, stop in [
        (None, None),
        (0, 1),
        (3, 11),
        (-5, None),
        (None, -2),
        (9, 3),
        (4090, 4105),
    ]:
        assert store.get_slice(b"key", start, stop) == value[start:stop]
    assert store.size_of(b"key") == size
    assert store.get_slice(b"missing", 0, 1) is None
    assert store.size_of(b"missing") is None


def test_slice_of_a_value_of_every_kind(pools: Any) -> None:
    pool = pools(node_size="8MiB", nodes=3)
    for kind in ("fusee", "swarm", "loco", "rtx-sherman"):
        store = pool.store(kind, name=kind)
        store.put(b"k", b"0123456789")
        assert store.get_slice(b"k", 2, 5) == b"234"
        assert store.size_of(b"k") == 10


def test_stores_are_listed_with_keys_and_bytes(pools: Any) -> None:
    pool = pools(node_size="8MiB")
    for kind in ("race", "rtx-sherman", "rcuckoo"):
        pool.store(kind, name=kind).put_many((b"%04d" % n, bytes(10)) for n in range(20))
    cache = pool.cache("cache", max_items=10)
    cache["k"] = "v"
    found = {store["name"]: (store["keys"], store["bytes"]) for store in pool.stores(count=True)}
    assert found.pop("cache") == (1, cache.stats()["bytes"])
    assert set(found.values()) == {(20, 20 * 14)}
    assert set(found) == {"race", "rtx-sherman", "rcuckoo"}
    assert "keys" not in pool.stores()[0]


def test_update_with_inside_of_itself_is_refused(mapping: Any) -> None:
    """The inner one changed the value each time, so the outer one began again without end."""
    mapping["n"] = mapping["m"] = 0
    with pytest.raises(limpet.ReentrantUse, match="'n'"):
        mapping.update_with("n", lambda _: mapping.update_with("n", lambda n: n + 1))
    assert mapping["n"] == 0
    assert mapping.update_with("n", lambda n: n + mapping.update_with("m", lambda m: m + 2)) == 2
    assert mapping.update_with("n", lambda n: n + 1) == 3


def test_update_with_of_a_parent_is_not_that_of_a_forked_child(mapping: Any) -> None:
    """Its threads have the idents of its parent's again, those that it starts as well."""
    mapping["n"] = 0

    def child() -> list[int]:
        threads = [mapping.update_with("n", lambda n: n + 5)]
        with ThreadPoolExecutor(1) as thread:
            threads.append(thread.submit(mapping.update_with, "n", lambda n: n + 5).result())
        return threads

    def fork_first(n: int) -> int:
        if not n:
            assert gather(child) == [[5, 10]]
        return n + 1

    assert mapping.update_with("n", fork_first) == 11
