"""Named things are made once: creators at the same time, dead, stopped, and failing ones."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kit.processes import child, gather
from kit.waiting import until

import limpet
from limpet.shm.catalogue.directory import READY, VOID
from limpet.shm.endpoint.fabric import BUILD, hash64
from limpet.stores.contents import StoreContents

BLOCKS = 20_000
"""Bytes of a region that takes whole blocks in the pools of these tests; few take an object."""


@pytest.fixture(autouse=True)
def regions_of_no_store() -> Iterator[None]:
    """The regions of these tests are not leaked."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreContents, "homes", lambda contents: None)
        yield


def obtain(pool: limpet.Pool, name: str, size: int = 5000) -> tuple[int, int]:
    return pool.exclusively(lambda: tuple(pool.regions.obtain(0, name, size)))  # type: ignore[no-any-return]


def entries(pool: limpet.Pool) -> list[tuple[bytes, int]]:
    return [(entry.name, entry.state) for entry in pool.regions.directories[0]]


def nothing_is_taken(pool: limpet.Pool) -> bool:
    """Whether no region has memory, and no object is in use."""
    found = pool.audit()
    extents = [pool.regions.extents(node) for node in range(pool.parameters.nodes)]
    return not any(extents) and found["reachable"] == found["held"] == found["leaked"] == 0


def test_creators_at_the_same_time_get_one_region(pools: Any) -> None:
    pool = pools()
    for turn in range(4):
        found = gather(*[lambda turn=turn: obtain(pool, f"region {turn}")] * 4)
        assert len(set(found)) == 1
    assert [name for name, _ in entries(pool)] == [b"region %d" % turn for turn in range(4)]
    assert pool.recover()["blocks"] == 0
    assert pool.audit()["leaked"] == 0


def test_creators_at_the_same_time_get_one_store(pools: Any) -> None:
    pool = pools(nodes=2)

    def make(number: int, turn: int) -> None:
        store = pool.store("race", name=f"store {turn}", capacity=100)
        store.put(b"%d" % number, b"here")

    for turn in range(4):
        gather(*[lambda n=n, turn=turn: make(n, turn) for n in range(4)])
        assert len(pool.store("race", name=f"store {turn}")) == 4
    assert len(pool.stores()) == 4


def colliding(name: str) -> str:
    """Another name with the same 12 bits of hash in the entry's state word."""
    wanted = hash64(name.encode()) & 0xFFF
    return next(
        other
        for other in (f"other {number}" for number in range(1 << 20))
        if hash64(other.encode()) & 0xFFF == wanted
    )


def test_names_whose_hashes_collide_are_two(pools: Any) -> None:
    pool = pools()
    other = colliding("name")
    assert obtain(pool, "name") != obtain(pool, other)
    assert obtain(pool, "name") == obtain(pool, "name")
    with child(make=lambda: _die_making(pool, "dead", 4)) as victim:
        victim.send("make")
        assert victim.reap() == -signal.SIGKILL
    # The claimed entry says only that it is of a name with this hash.
    assert obtain(pool, colliding("dead")) != obtain(pool, "dead")


def _die_making(pool: limpet.Pool, name: str, fuse: int) -> None:
    pool.client_id  # noqa: B018
    pool.endpoint.fuse = fuse
    obtain(pool, name, 300)
    pool.endpoint.fuse = 0


def test_dead_creator_is_taken_over_at_every_step(pools: Any) -> None:
    pool = pools()
    survived = False
    fuse = 0
    while not survived:
        fuse += 1
        name = f"region {fuse % 8}"
        with child(make=lambda fuse=fuse, name=name: _die_making(pool, name, fuse)) as other:
            other.send("make")
            try:
                other.answer()
                survived = True
            except EOFError:
                other.reap()
        start, size = obtain(pool, name, 300)
        assert pool.endpoint.read(start, size) == bytes(300)
        pool.exclusively(lambda name=name: pool.regions.discard(0, name))
        pool.recover()
        assert pool.audit()["leaked"] == 0, fuse
    assert fuse > 40


@pytest.mark.parametrize("fence", ["kill", "wait"])
def test_stopped_creator_is_fenced_or_waited_for(pools: Any, fence: str) -> None:
    pool = pools(lease=0.05, fence=fence)

    def make() -> None:
        pool.exclusively(
            lambda: pool.regions.obtain(0, "r", 300, lambda _: os.kill(os.getpid(), signal.SIGSTOP))
        )

    with child(make=make) as other, child(get=lambda: obtain(pool, "r", 300)) as waiter:
        other.send("make")
        os.waitpid(other.pid, os.WUNTRACED)
        waiter.send("get")
        if fence == "kill":
            found = waiter.answer()
            assert other.reap() == -signal.SIGKILL
            assert "fenced" in [event["kind"] for event in pool.events()]
        else:
            until(pool.events)
            assert [(e["kind"], e["pid"]) for e in pool.events()] == [("suspended", other.pid)]
            other.wake()
            other.answer()
            found = waiter.answer()
        assert obtain(pool, "r", 300) == found


def test_creator_that_makes_progress_is_not_fenced(pools: Any) -> None:
    # On a busy machine a process stands still for longer than a short lease.
    assert any(not fenced_making(pools(lease=lease_s), lease_s) for lease_s in (0.1, 0.4, 1.6, 6.4))


def fenced_making(pool: limpet.Pool, lease_s: float) -> list[dict[str, Any]]:
    """The end of a creator that makes progress, and takes six leases."""

    def slowly(_: Any) -> None:
        for _turn in range(30):
            time.sleep(lease_s / 5)
            pool.membership.progress()

    def make() -> None:
        pool.exclusively(lambda: pool.regions.obtain(0, "r", 300, slowly))

    with child(make=make) as other, child(get=lambda: obtain(pool, "r", 300)) as waiter:
        other.send("make")
        while not any(entry.client for entry in pool.regions.directories[0]):
            time.sleep(0.001)
        waiter.send("get")
        with contextlib.suppress(EOFError):
            other.answer()
        waiter.answer()
    return pool.events()


def test_store_without_room_leaves_the_name_to_a_smaller_one(pools: Any) -> None:
    pool = pools(nodes=2, node_size="512KiB")
    with pytest.raises(limpet.StoreFull, match="no room for the index"):
        pool.store("race", name="s", capacity=10_000_000)
    assert nothing_is_taken(pool)
    assert pool.stores() == []
    store = pool.store("race", name="s", capacity=64)
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"
    assert [entry["name"] for entry in pool.stores()] == ["s"]


compiled_only = pytest.mark.skipif(
    BUILD != "compiled", reason="the pure build opens only memory that is coherent"
)
IN_PART: dict[str, Any] = {"coherent": False, "coherent_bytes": 4 << 20}


@pytest.mark.parametrize(
    ("kind", "capacity", "options", "memory"),
    [
        ("fusee", 1 << 20, {"replicas": 2}, {}),
        ("swarm", 1 << 19, {"replicas": 3}, {}),
        pytest.param("race", 1 << 20, {}, IN_PART, marks=compiled_only),
        pytest.param("fusee", 1 << 19, {"replicas": 2}, IN_PART, marks=compiled_only),
    ],
)
def test_capacity_that_cannot_fit_is_refused_when_the_store_is_made(
    pools: Any, kind: str, capacity: int, options: dict[str, int], memory: dict[str, Any]
) -> None:
    """One replica of the index in all of the memory would fit."""
    pool = pools(nodes=3, node_size="8MiB", **memory)
    with pytest.raises(limpet.StoreFull, match="no room for the index"):
        pool.store(kind, name="s", capacity=capacity, **options)
    assert nothing_is_taken(pool)
    assert pool.stores() == []
    pool.store(kind, name="s", capacity=capacity // 4, **options).put(b"k", b"v")


def test_failed_region_is_void_and_made_again(pools: Any) -> None:
    pool = pools()

    def fail(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.exclusively(lambda: pool.regions.obtain(0, "r", 300, fail))
    assert entries(pool) == [(b"r", VOID)]
    assert pool.audit()["leaked"] == 0
    obtain(pool, "r", 400)
    assert entries(pool) == [(b"r", READY)]


def test_blocks_of_a_failed_region_are_never_planned_by_an_entry(pools: Any) -> None:
    """Killed at every step while taking a failed creation back: no entry may name free blocks."""
    pool = pools()

    def fail(fuse: int) -> None:
        def stop(_: Any) -> None:
            pool.endpoint.fuse = fuse
            raise KeyError("no")

        try:
            pool.exclusively(lambda: pool.regions.obtain(0, "r", 300, stop))
        except KeyError:
            pool.endpoint.fuse = 0

    for fuse in range(1, 6):
        with child(join=lambda: pool.client_id, fail=lambda fuse=fuse: fail(fuse)) as other:
            other.do("join")
            other.send("fail")
            try:
                other.answer()
            except EOFError:
                other.reap()
            for first, count, mark in pool.regions.extents(0):
                for block in range(first, first + count):
                    assert pool.blocks.words(0).tolist()[block] & (1 << 48) - 1 == mark
        pool.recover()
        obtain(pool, "r", 300)
        pool.exclusively(lambda: pool.regions.discard(0, "r"))


def test_sweep_spares_a_region_that_is_made_meanwhile(pools: Any, monkeypatch: Any) -> None:
    pool = pools()
    other = pools.again(pool)
    look = pool.regions.blocks.words

    def words(node: int) -> Any:
        found = look(node)
        obtain(other, "new", BLOCKS)
        return found

    extents = pool.regions._extents

    def listed(node: int, entries: Any) -> Any:
        obtain(other, "new too", BLOCKS)
        return extents(node, entries)

    monkeypatch.setattr(pool.regions.blocks, "words", words)
    monkeypatch.setattr(pool.regions, "_extents", listed)
    assert pool.recover()["blocks"] == 0
    monkeypatch.undo()
    assert pool.audit()["leaked"] == 0
    assert len(pool.regions.extents(0)) == 2
    for first, count, mark in pool.regions.extents(0):
        assert {word & (1 << 48) - 1 for word in look(0).tolist()[first : first + count]} == {mark}


def test_directory_that_is_full_says_so(pools: Any) -> None:
    pool = pools(node_size="2MiB")
    entries = pool.layout.region_entries
    assert entries == 64
    for number in range(entries):
        obtain(pool, f"r{number}", 100)
    with pytest.raises(limpet.StoreFull, match="all 64 entries are taken"):
        obtain(pool, "one more", 100)
    assert obtain(pool, "r63", 100)


def test_damaged_entry_is_refused(pools: Any) -> None:
    pool = pools()
    obtain(pool, "r")
    at = pool.regions.directories[0].base
    pool.endpoint.store(at + 16, 1)
    with pytest.raises(limpet.PoolCorrupt, match="entry 0 is damaged"):
        obtain(pool, "r")
    pool.endpoint.store(at + 8, 1 << 40)
    with pytest.raises(limpet.PoolCorrupt):
        list(pool.regions.directories[0])
