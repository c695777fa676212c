"""Scans of trees while others split and merge nodes: no key that stays is lost, or met twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.processes import gather
from kit.puppets import Puppet
from kit.stores import sound

from limpet.shm.endpoint.fabric import BUILD

COMPILED: Final = BUILD == "compiled"
TREES: Final = ("rtx-sherman", "sherman", "dtx-sherman")
SMALL: Final = {"node_size": 320, "key_size": 8, "value_size": 32}
LEASE: Final = {"drift_us": 0, "each_us": 20}
"""Others take it to be over while its owner stands still."""
STAYS: Final = [b"%04d" % number for number in range(0, 400, 20)]
COMES: Final = [b"%04d" % number for number in range(400) if number % 20]
VALUE: Final = bytes(32)
STEPS: Final = 1000


def grown(pools: Any, kind: str, keys: list[bytes], **more: Any) -> Any:
    """A store with these keys, in many leaves; two trees, if there are two memory nodes."""
    pool = pools(nodes=more.pop("nodes", 1), node_size="2MiB")
    store = pool.store(kind, name="test", **SMALL, **more)
    for key in keys:
        store.put(key, VALUE)
    return store


def as_promised(found: list[tuple[bytes, bytes]]) -> None:
    keys = [key for key, _ in found]
    assert keys == sorted(set(keys))
    assert set(STAYS) <= set(keys) <= {*STAYS, *COMES}
    assert {value for _, value in found} == {VALUE}


def _split(store: Any) -> None:
    for key in COMES[::3]:
        store.put(key, VALUE)


def _merge(store: Any) -> None:
    for key in COMES[::3]:
        store.delete(key)


CHANGES: Final[dict[str, tuple[list[bytes], Callable[[Any], None]]]] = {
    "splits": (STAYS, _split),
    "merges": ([*STAYS, *COMES[::3]], _merge),
}


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["splits-*-warm", "splits-1-reverse"])
@pytest.mark.parametrize("how", ["cold", "warm", "reverse"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_who_scans_may_stand_still_at_each_step(
    pools: Any, change: str, nodes: int, how: str
) -> None:
    """`warm`: it has noted which leaf follows which."""
    reverse = how == "reverse"
    keys, work = CHANGES[change]
    for step in range(1, STEPS, 2 if COMPILED else 40):
        store = grown(pools, "rtx-sherman", keys, nodes=nodes)
        slow = Puppet(pools, store.pool.url, "rtx-sherman")
        if how == "warm":
            list(slow.store.scan())
        left = [step]

        def reached(verb: str, address: int, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        done = slow.begin(lambda slow=slow: list(slow.store.scan(reverse=reverse)), reached)
        work(store)
        assert done or slow.go()
        as_promised(slow.result[::-1] if reverse else slow.result)
        as_promised(list(store.scan()))
        sound(store)
        pools.destroy()
        if done:
            break
    assert done
    assert step > 20


@pytest.mark.exhaustive("every step")
@pytest.mark.parametrize("change", CHANGES)
def test_who_splits_or_merges_may_stand_still_at_each_step(pools: Any, change: str) -> None:
    keys, work = CHANGES[change]
    for step in range(1, STEPS * 20, 53 if COMPILED else 900):
        store = grown(pools, "rtx-sherman", keys, **LEASE)
        slow = Puppet(pools, store.pool.url, "rtx-sherman")
        left = [step]

        def reached(verb: str, address: int, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        done = slow.begin(lambda slow=slow: work(slow.store), reached)
        as_promised(list(store.scan()))
        assert done or slow.go()
        as_promised(list(store.scan()))
        assert next(key for key, _ in store.scan(STAYS[3], STAYS[9])) == STAYS[3]
        sound(store)
        pools.destroy()
        if done:
            break
    assert done
    assert step > 100


@pytest.mark.exhaustive("every kind", quick=["rtx-sherman"])
@pytest.mark.parametrize("kind", TREES if COMPILED else TREES[:1])
def test_processes_scan_while_others_split_and_merge(pools: Any, kind: str) -> None:
    store = grown(pools, kind, STAYS, nodes=2)
    seconds = 1.5

    def change(seed: int) -> int:
        source, changes, end = random.Random(seed), 0, time.monotonic() + seconds
        keys = COMES[seed::2]
        while time.monotonic() < end:
            first = source.randrange(len(keys))
            some = keys[first : first + 30]
            for key in some:
                store.put(key, VALUE)
            for key in some:
                store.delete(key)
            changes += len(some)
        return changes

    def scan() -> int:
        scans, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            as_promised(list(store.scan()))
            as_promised(list(store.scan(reverse=True))[::-1])
            part = [key for key, _ in store.scan(STAYS[5], STAYS[-5])]
            assert part == sorted(set(part))
            assert set(STAYS[5:-5]) <= set(part)
            scans += 1
        return scans

    counts = gather(lambda: change(0), lambda: change(1), scan, scan)
    assert min(counts) > 0
    assert [key for key, _ in store.scan()] == STAYS
    sound(store)


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("nodes", [1, 3])
def test_ranges_in_either_direction(pools: Any, kind: str, nodes: int) -> None:
    store = grown(pools, kind, [], nodes=nodes)
    source = random.Random(nodes)
    numbers = source.sample(range(10_000), 400 if COMPILED else 60)
    keys = [b"", b"\xff", b"\xff\xff", *(b"%04d" % number for number in numbers)]
    expected = {key: key * 2 if len(key) % 2 else b"x" * 50 for key in keys}
    for key in keys:
        store.put(key, expected[key])
    for key in keys[::5]:
        store.delete(key)
        del expected[key]
    pairs = sorted(expected.items())
    assert list(store.scan()) == pairs
    assert list(store.scan(reverse=True)) == pairs[::-1]
    bounds = [None, *source.sample(keys, 12), b"5", b"99999", b"4999\x00"]
    for low in bounds:
        for high in source.sample(bounds, 5):
            limit = source.choice((None, 0, 1, 7, 100))
            wanted = [
                pair
                for pair in pairs
                if (low is None or pair[0] >= low) and (high is None or pair[0] < high)
            ]
            assert list(store.scan(low, high, limit=limit)) == wanted[:limit]
            assert list(store.scan(low, high, reverse=True, limit=limit)) == wanted[::-1][:limit]
            assert store.first(low, high) == (wanted[0] if wanted else None)
            assert store.last(low, high) == (wanted[-1] if wanted else None)
    for key in bounds[1:]:
        at_most = [pair for pair in pairs if pair[0] <= key]
        at_least = [pair for pair in pairs if pair[0] >= key]
        assert store.floor(key) == (at_most[-1] if at_most else None)
        assert store.ceiling(key) == (at_least[0] if at_least else None)
    for prefix in (b"", b"4", b"49", b"\xff", b"\xff\xff", b"none"):
        wanted = [pair for pair in pairs if pair[0].startswith(prefix)]
        assert list(store.scan(prefix=prefix)) == wanted
        assert list(store.scan(prefix=prefix, reverse=True)) == wanted[::-1]
        assert store.last(prefix=prefix) == (wanted[-1] if wanted else None)
    after = [pair for pair in pairs if pair[0].startswith(b"4") and pair[0] > b"4500"]
    assert list(store.scan(b"4500\x00", prefix=b"4")) == after


def test_scans_of_an_empty_tree_and_bad_arguments(pools: Any) -> None:
    store = grown(pools, "rtx-sherman", [])
    assert list(store.scan(reverse=True)) == []
    assert store.first() is store.last() is store.floor(b"") is store.ceiling(b"") is None
    with pytest.raises(ValueError, match="limit is not negative: -1"):
        store.scan(limit=-1)
    for wrong in ({"prefix": "text"}, {"limit": 1.5}, {"low": 3}):
        with pytest.raises(TypeError):
            store.scan(**wrong)


@pytest.mark.parametrize("empty", [b"", bytearray(), memoryview(b"abc")[:0]])
def test_nothing_is_below_the_empty_key(pools: Any, empty: Any) -> None:
    """Also if it is another object than b"" is."""
    store = grown(pools, "rtx-sherman", [b"", b"a"])
    assert list(store.scan(high=empty)) == list(store.scan(high=empty, reverse=True)) == []
    assert store.last(high=empty) is None
    assert [key for key, _ in store.scan(low=empty)] == [b"", b"a"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_scan_with_a_limit_reads_no_more_leaves_than_it_needs(pools: Any, nodes: int) -> None:
    store = grown(pools, "rtx-sherman", STAYS + COMES, nodes=nodes)
    list(store.scan())
    before = store.stats()["bytes_read"]
    list(store.scan(limit=10))
    few = store.stats()["bytes_read"] - before
    before = store.stats()["bytes_read"]
    list(store.scan(limit=100))
    many = store.stats()["bytes_read"] - before
    assert few <= nodes * 4 * (320 + 16)
    assert many <= (100 / 3 + 4 * nodes) * (320 + 16)
