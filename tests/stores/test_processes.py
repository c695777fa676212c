"""Promises of every registered store to several processes that use it at once."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import children, gather
from kit.stores import linked, sound
from kit.waiting import until

import limpet
from limpet.stores.registry import store_class

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["race"]
)

PURE = limpet.build == "pure"
Make = Callable[..., Any]


def sealed(source: random.Random, key: bytes) -> bytes:
    """A value that tells whether it is whole, and which key it was written for."""
    body = source.randbytes(source.choice((0, 1, 40, 500, 4100, 20_000)))
    return hashlib.blake2b(key + body, digest_size=8).digest() + body


def is_whole(key: bytes, value: bytes) -> bool:
    return hashlib.blake2b(key + value[8:], digest_size=8).digest() == value[:8]


def rounds(count: int) -> int:
    return count // 10 if PURE else count


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_readers_see_only_values_that_were_written(make_store: Make) -> None:
    store = make_store(capacity=100, pool_nodes=2, pool_node_size="4MiB")
    keys = [b"%d" % number for number in range(8)]
    over = mmap.mmap(-1, 4096)

    def write(seed: int) -> int:
        source = random.Random(seed)
        for turn in itertools.count():
            if turn >= rounds(3000) and over[2] and over[3]:
                break
            key = source.choice(keys)
            if source.random() < 0.2:
                with contextlib.suppress(KeyError):
                    store.delete(key)
            else:
                store.put(key, sealed(source, key))
        over[seed] = 1
        return 0

    def read(seed: int) -> int:
        met = 0
        while not (over[0] and over[1]):
            for key, value in (*zip(keys, store.get_many(keys), strict=True), *store.items()):
                if value is not None:
                    assert is_whole(key, value)
                    met += 1
                    over[seed] = 1  # the writers go on until each reader has met a value
            value = store.get(keys[seed])
            assert value is None or is_whole(keys[seed], value)
        return met

    with over:
        counts = gather(lambda: write(0), lambda: write(1), lambda: read(2), lambda: read(3))
    assert min(counts[2:]) > 0
    sound(store)


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_an_insert_of_one_key_succeeds_in_one_process(make_store: Make) -> None:
    """Over and over, on keys of the same buckets too: every key is inserted once, for good."""
    store = make_store(capacity=3000, pool_node_size="4MiB")
    count = rounds(2000)

    def child(number: int) -> list[int]:
        won = []
        for key in range(count):
            try:
                store.insert(b"%d" % key, b"%d" % number)
            except limpet.KeyExists:
                assert store.get(b"%d" % key) is not None
            else:
                won.append(key)
                assert store.get(b"%d" % key) == b"%d" % number
        return won

    won = gather(*[lambda n=n: child(n) for n in range(4)])
    assert sorted(key for keys in won for key in keys) == list(range(count))
    for number, keys in enumerate(won):
        assert all(store.get(b"%d" % key) == b"%d" % number for key in keys)
    assert len(store) == count
    sound(store)


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_insert_and_delete_make_a_lock(make_store: Make) -> None:
    """The process that inserted the key is alone until it deletes it: a counter loses nothing."""
    store = make_store(capacity=100)
    store.put(b"counter", b"0")
    each = rounds(1000)
    deadline = time.monotonic() + 60

    def child() -> int:
        done = 0
        while done < each and time.monotonic() < deadline:
            try:
                store.insert(b"lock", b"%d" % os.getpid())
            except limpet.KeyExists:
                continue
            value = store.get(b"counter")
            store.update(b"counter", b"%d" % (int(value) + 1))
            assert store.get(b"lock") == b"%d" % os.getpid()
            store.delete(b"lock")
            done += 1
        return done

    done = gather(*[child] * 4)
    assert done == [each] * 4
    assert store.get(b"counter") == b"%d" % (4 * each)
    sound(store)


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_deletes_of_one_key_succeed_once(make_store: Make) -> None:
    store = make_store(capacity=3000, pool_node_size="4MiB")
    count = rounds(2000)
    store.put_many((b"%d" % key, b"v") for key in range(count))

    def child() -> list[int]:
        won = []
        for key in range(count):
            try:
                store.delete(b"%d" % key)
            except KeyError:
                continue
            won.append(key)
        return won

    won = gather(*[child] * 4)
    assert sorted(key for keys in won for key in keys) == list(range(count))
    assert linked(store) == 0


def test_updates_never_bring_a_deleted_key_back(make_store: Make) -> None:
    """An update that comes after the delete of its key raises KeyError."""
    store = make_store(capacity=1000)
    count = rounds(500)
    store.put_many((b"%d" % key, b"v") for key in range(count))

    def update() -> None:
        for _ in range(3):
            for key in range(count):
                try:
                    store.update(b"%d" % key, b"w")
                except KeyError:
                    assert store.get(b"%d" % key) is None

    def delete() -> None:
        for key in range(count):
            store.delete(b"%d" % key)

    gather(update, update, delete)
    assert len(store) == 0
    assert linked(store) == 0


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_one_writers_values_are_read_in_order(make_store: Make) -> None:
    """A reader never goes back: per key, reads are linearizable."""
    store = make_store(capacity=100)
    count = rounds(20_000)
    store.put(b"k", struct.pack("<Q", 0))

    def write() -> int:
        for number in range(1, count + 1):
            store.put(b"k", struct.pack("<Q", number))
        return count

    def read() -> int:
        last = 0
        while last < count:
            now = struct.unpack("<Q", store.get(b"k"))[0]
            assert now >= last
            last = now
        return last

    assert gather(write, read, read) == [count] * 3


@pytest.mark.exhaustive("every kind", quick=["race", "swarm", "rcuckoo"])
def test_sixteen_clients_on_few_cores_finish(make_store: Make, kind: str) -> None:
    more = {"writers": 32} if store_class(kind).majorities else {}
    store = make_store(capacity=1000, pool_nodes=2, pool_node_size="64MiB", **more)
    keys = [b"%d" % number for number in range(50)]
    before = sum(os.times()[2:4])

    def child(seed: int) -> int:
        source = random.Random(seed)
        for _ in range(rounds(1000)):
            key = source.choice(keys)
            if source.random() < 0.5:
                store.put(key, sealed(source, key))
            else:
                value = store.get(key)
                assert value is None or is_whole(key, value)
        return 1

    assert gather(*[lambda s=s: child(s) for s in range(16)]) == [1] * 16
    assert sum(os.times()[2:4]) - before < 20, "of the CPU, in all children"
    sound(store)


def test_memory_that_others_freed_can_be_used(tight_store: Any, pools: Any) -> None:
    store = tight_store
    again = pools.again(store.pool)
    for pool in (store.pool, again):
        pool.blocks.reserve = 0  # all of the memory is for entries here
    other = again.store(store.kind, name="test")
    # a key has a register besides, and a loco store a ring as long as its table
    count = 75 if store.majorities or store.kind == "loco" else 150
    for number in range(count):
        other.put(b"%d" % number, bytes(2000))
    for number in range(count):
        other.delete(b"%d" % number)
    for number in range(count):
        store.put(b"%d" % number, bytes(2000))


@pytest.mark.exhaustive("two seconds each", quick=["race", "swarm"])
@pytest.mark.soak("baselines", cases=["clover", "dm-abd", "dtx-*", "fusee-*", "pdpm", "sherman"])
@pytest.mark.usefixtures("recovered")
def test_processes_killed_at_any_time_leave_a_sound_store(make_store: Make) -> None:
    store = make_store(capacity=1000, pool_nodes=2, pool_node_size="8MiB")
    keys = [b"%d" % number for number in range(30)]

    def child(seed: int) -> None:
        source = random.Random(seed)
        while True:
            key = source.choice(keys)
            if source.random() < 0.3:
                with contextlib.suppress(KeyError):
                    store.delete(key)
            else:
                store.put(key, sealed(source, key))

    source = random.Random(5)
    for number in range(10):
        with children([lambda s=s: child(s) for s in range(number, number + 3)]) as running:
            time.sleep(0.1 + source.random() * 0.05)
            for pid, _ in running:
                os.kill(pid, signal.SIGKILL)
        for key in keys:
            value = store.get(key)
            assert value is None or is_whole(key, value)
        store.recover()
        sound(store)
    assert [client["ours"] for client in store.pool.clients()] == [True]


def test_a_dead_client_is_recovered_by_whoever_checks_in(make_store: Make, pools: Any) -> None:
    store = make_store(capacity=1000)
    with children([lambda: (store.put(b"theirs", b"v"), signal.pause())]) as running:
        until(lambda: store.get(b"theirs") is not None)
        os.kill(running[0][0], signal.SIGKILL)
        os.waitpid(running[0][0], 0)
    states = {client["pid"]: client["state"] for client in store.pool.clients()}
    assert states.pop(os.getpid()) == "live"
    assert list(states.values()) == ["dead"]
    found = store.recover()
    assert len(found["clients"]) == 1
    assert [client["pid"] for client in store.pool.clients()] == [os.getpid()]
    assert store.get(b"theirs") == b"v"
    assert store.pool.events()[-1]["kind"] == "recovered"
    sound(store)


@pytest.mark.either_build("the same lines")
@pytest.mark.exhaustive("every kind", quick=["*-0"])
@pytest.mark.parametrize("round_", range(3))
def test_memory_of_the_dead_is_used_again(tight_store: Any, round_: int) -> None:
    """Clients that fill the memory and are killed do not wear the pool out."""
    store = tight_store

    def fill() -> None:
        try:
            for number in range(10_000):
                store.insert(b"%d" % number, bytes(1000 + 7_500 * round_))
        except limpet.StoreFull:
            os.kill(os.getpid(), signal.SIGKILL)

    counts = []
    for _ in range(3):
        with children([fill]) as running:
            assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == -signal.SIGKILL
        counts.append(len(store))
        for key in list(store):
            store.delete(key)
        store.recover()
        sound(store)
    assert counts[0] > 10
    assert min(counts) >= counts[0] - 1
