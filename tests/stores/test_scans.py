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
@pytest.mark.exhaustive("every step", quick=["splits-*-True"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_who_scans_may_stand_still_at_each_step(
    pools: Any, change: str, nodes: int, warm: bool
) -> None:
    """`warm`: it has noted which leaf follows which."""
    keys, work = CHANGES[change]
    for step in range(1, STEPS, 2 if COMPILED else 40):
        store = grown(pools, "rtx-sherman", keys, nodes=nodes)
        slow = Puppet(pools, store.pool.url, "rtx-sherman")
        if warm:
            list(slow.store.scan())
        left = [step]

        def reached(verb: str, address: int, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        done = slow.begin(lambda slow=slow: list(slow.store.scan()), reached)
        work(store)
        assert done or slow.go()
        as_promised(slow.result)
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
            part = [key for key, _ in store.scan(STAYS[5], STAYS[-5])]
            assert part == sorted(set(part))
            assert set(STAYS[5:-5]) <= set(part)
            scans += 1
        return scans

    counts = gather(lambda: change(0), lambda: change(1), scan, scan)
    assert min(counts) > 0
    assert [key for key, _ in store.scan()] == STAYS
    sound(store)
