"""Replicated stores whose memory nodes are lost and replaced, while clients work and are killed."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import start
from kit.stores import sound
from kit.waiting import until

import limpet
from limpet.shm.endpoint.slots import PIN
from limpet.shm.replacement import Replacement
from limpet.stores.fusee import restoring, tables
from limpet.stores.registry import KINDS, store_class

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

KEYS = [b"%d" % number for number in range(100)]
NODES = 5
COMPILED = limpet.build == "compiled"


@pytest.fixture(params=[kind for kind in sorted(KINDS) if store_class(kind).replicated])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def replicas_of(kind: str, losses: int) -> int:
    """How many replicas a store has that survives so many losses."""
    return 2 * losses + 1 if store_class(kind).majorities else losses + 1


def value(key: bytes, round_: int) -> bytes:
    return b"%s in round %d" % (key, round_) * (1 + int(key) % 7)


def there(store: Any, round_: int) -> None:
    assert [store.get(key) for key in KEYS] == [value(key, round_) for key in KEYS]
    assert dict(store.items()) == {key: value(key, round_) for key in KEYS}


def served_or_lost(store: Any) -> list[Any]:
    """The value of each key, or the node that is named in its place."""
    found: list[Any] = []
    for key in KEYS:
        try:
            found.append(store.get(key))
        except limpet.NodeFailed as error:
            found.append(error.node)
    return found


@pytest.mark.either_build("the same lines")
@pytest.mark.exhaustive("every size", quick=["*-1"])
@pytest.mark.parametrize("losses", [1, 2])
def test_every_node_is_replaced_in_turn(
    make_store: Callable[..., Any], kind: str, losses: int
) -> None:
    replicas = replicas_of(kind, losses)
    store = make_store(pool_nodes=NODES, capacity=300, replicas=replicas)
    other = limpet.open(store.pool.url).store(store.kind, name="test")
    with other.pool:
        store.put_many((key, value(key, 0)) for key in KEYS)
        for node in range(NODES):
            store.pool.fail_node(node)
            store.put_many((key, value(key, node + 1)) for key in KEYS)
            done = store.pool.replace_node(node)
            assert done["regions"] == replicas
            assert done["objects"] > 0
            for handle in (store, other, store.pool.store(store.kind, name="test")):
                there(handle, node + 1)
                sound(handle)
        kinds = [event["kind"] for event in store.pool.events()]
        assert kinds.count("node restored") == NODES


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("losses", [1, 2])
def test_what_was_copied_outlives_the_rest(
    make_store: Callable[..., Any], kind: str, losses: int
) -> None:
    """After a replacement, as many others may be lost again as the store survives."""
    for others in ([2, 3], [4, 0]):
        store = make_store(pool_nodes=NODES, capacity=300, replicas=replicas_of(kind, losses))
        store.put_many((key, value(key, 0)) for key in KEYS)
        store.pool.fail_node(1)
        store.put_many((key, value(key, 1)) for key in KEYS)
        store.pool.replace_node(1)
        for node in others[:losses]:
            store.pool.fail_node(node)
            there(store, 1)
        store.put_many((key, value(key, 2)) for key in KEYS)
        for node in others[:losses]:
            store.pool.replace_node(node)
        there(store, 2)
        sound(store)


def test_two_are_lost_and_then_all_are_there(make_store: Callable[..., Any], kind: str) -> None:
    """Of three replicas one is left; with a majority, three of five."""
    replicas = replicas_of(kind, 2)
    store = make_store(pool_nodes=replicas, capacity=300, replicas=replicas)
    store.put_many((key, value(key, 0)) for key in KEYS)
    for node in (0, 1):
        store.pool.fail_node(node)
    store.put_many((key, value(key, 1)) for key in KEYS[:-1])
    store.delete(KEYS[-1])
    for node in (0, 1):
        store.pool.replace_node(node)
    sound(store)
    store.insert(KEYS[-1], value(KEYS[-1], 1))
    for node in (2, 0):
        store.pool.fail_node(node)
        there(store, 1)
    sound(store)


@pytest.mark.parametrize("single", [k for k in sorted(KINDS) if not store_class(k).replicated])
def test_what_only_the_lost_node_had_is_not_called_missing(pools: Any, single: str) -> None:
    pool = pools(nodes=3, node_size="4MiB")
    beside = pool.store("fusee", name="beside", capacity=300, replicas=2)
    alone = pool.store(single, name="alone", capacity=300)
    for key in KEYS:
        beside.put(key, value(key, 0))
        alone.put(key, value(key, 0))
    pool.fail_node(1)
    pool.replace_node(1)
    for handle in (alone, pool.store(single, name="alone")):
        served = set()
        for key in KEYS:
            with contextlib.suppress(limpet.NodeFailed):
                assert handle.get(key) == value(key, 0)
                handle.update(key, value(key, 0))
                served.add(key)
        assert 0 < len(served) < len(KEYS)
        for key in set(KEYS) - served:
            with pytest.raises(limpet.NodeFailed, match=r"node 1 .* was replaced"):
                handle.put(key, b"new")
        with pytest.raises(limpet.NodeFailed, match="was replaced"):
            handle.check()
    assert pool.audit()["leaked"] == 0
    another = pool.store(single, name="another", capacity=300)
    another.put_many((key, key) for key in KEYS)
    assert len(another) == len(KEYS)
    there(beside, 0)


@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_a_node_with_the_last_replica_is_not_replaced(make_store: Callable[..., Any]) -> None:
    """Two nodes of a store that survives one: what both had is lost, and stays an error."""
    store = make_store(pool_nodes=NODES, capacity=300, replicas=2)
    store.put_many((key, b"") for key in KEYS)
    store.pool.fail_node(1)
    # what has its slots on nodes 1 and 2 is now on 2 and 3
    store.put_many((key, value(key, 0)) for key in KEYS)
    store.pool.replace_node(1)
    lost = (2, 3)
    for node in lost:
        store.pool.fail_node(node)

    def read() -> list[Any]:
        found = []
        for key in KEYS:
            try:
                found.append(store.get(key) == value(key, 0))
            except limpet.NodeFailed as error:
                found.append(error.node in lost)
        return found

    assert all(read())
    for node in lost:
        with pytest.raises(limpet.NodeFailed, match="all of their replicas were lost"):
            store.pool.replace_node(node)
        assert store.pool.nodes()[node]["state"] == "failed"
    assert all(read())


@pytest.mark.exhaustive("every kind", quick=["swarm-*", "fusee-[0-9]*"])
@pytest.mark.parametrize("at", range(1, 11) if COMPILED else [5])
def test_another_node_is_lost_while_one_is_replaced(
    make_store: Callable[..., Any], kind: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement begins anew; that data is lost is not said while there are replicas."""
    replicas = replicas_of(kind, 2)
    nodes = replicas + 1
    store = make_store(pool_nodes=nodes, capacity=300, replicas=replicas)
    store.put_many((key, value(key, 0)) for key in KEYS)
    store.pool.fail_node(0)
    there(store, 0)
    other = limpet.open(store.pool.url)
    steps = itertools.count(1)

    def passes(work: Callable[..., Any]) -> Callable[..., Any]:
        def passed(*given: Any) -> Any:
            result = work(*given)
            if next(steps) == at:
                other.fail_node(nodes - 2)
            return result

        return passed

    with other, monkeypatch.context() as patched:
        patched.setattr(restoring, "obtain_directory", passes(restoring.obtain_directory))
        patched.setattr(restoring, "copy", passes(restoring.copy))
        patched.setattr(Replacement, "_others_serve", passes(Replacement._others_serve))
        done = store.pool.replace_node(0)
    assert next(steps) > at
    assert done["generation"] > 1
    there(store, 0)
    store.pool.replace_node(nodes - 2)
    there(store, 0)
    sound(store)


def test_a_leader_stays_pinned_while_it_makes_a_small_directory(
    make_store: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It unpinned, so another client took the lead, and the node was marked lost once more."""
    store = make_store(pool_nodes=3, capacity=10, limit=10, replicas=replicas_of(kind, 1))
    store.put(b"k", b"v")
    pool = store.pool
    pool.fail_node(0)
    obtain, pins = restoring.obtain_directory, []

    def obtained(*given: Any) -> Any:
        region = obtain(*given)
        assert region.size <= pool.layout.block_size // 2
        pins.append(pool.endpoint.load(pool.client.slot + PIN))
        return region

    monkeypatch.setattr(restoring, "obtain_directory", obtained)
    pool.replace_node(0)
    assert pins
    assert all(pins)
    assert store.get(b"k") == b"v"
    sound(store)


def test_more_are_lost_than_the_store_survives(make_store: Callable[..., Any], kind: str) -> None:
    """All replicas of something, or of all: no node is replaced, and what is left is served."""
    replicas = replicas_of(kind, 1)
    for lost in (range(2), range(3)):
        store = make_store(pool_nodes=3, capacity=300, replicas=replicas)
        store.put_many((key, value(key, 0)) for key in KEYS)
        for node in lost:
            store.pool.mark_failed(node)

        before = served_or_lost(store)
        assert any(isinstance(found, int) for found in before)
        for node in lost:
            with pytest.raises(limpet.NodeFailed, match="save what is left"):
                store.pool.replace_node(node)
            assert store.pool.nodes()[node]["state"] == "failed"
        for now, then in zip(served_or_lost(store), before, strict=True):
            # Of several lost nodes, any may be named.
            assert now == then or (now in lost and then in lost)


@pytest.mark.parametrize("when", ["passed by", "made there", "not mapped yet"])
def test_a_node_is_replaced_while_a_store_is_made(
    pools: Any, kind: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store had a replica less than it says, on a node that is in service."""
    replicas = replicas_of(kind, 1)
    pool = pools(nodes=3)
    other = pools.again(pool)
    obtain = tables.obtain_directory
    calls = itertools.count(1)
    if when == "passed by":
        other.fail_node(1)
        other.store(kind, name="other", capacity=100, replicas=replicas).put(b"k", b"v")

    def obtained(*given: Any) -> Any:
        number = next(calls)
        if number == 1 and when == "not mapped yet":
            other.fail_node(1)
            other.replace_node(1)
        try:
            return obtain(*given)
        finally:
            if number == 3 * replicas and when != "not mapped yet":
                if when == "made there":
                    other.fail_node(1)
                other.replace_node(1)

    monkeypatch.setattr(tables, "obtain_directory", obtained)
    store = pool.store(kind, name="test", capacity=100, replicas=replicas)
    monkeypatch.undo()
    assert next(calls) > 3 * replicas
    store.put_many((key, value(key, 0)) for key in KEYS[:60])
    other.fail_node(0)
    assert [store.get(key) for key in KEYS[:60]] == [value(key, 0) for key in KEYS[:60]]
    other.replace_node(0)
    assert [store.get(key) for key in KEYS[:60]] == [value(key, 0) for key in KEYS[:60]]
    sound(store)


# ---- with clients at work ------------------------------------------------------------------------


class Notes:
    """For each key, the last value that its writer intended and the last that it acknowledged."""

    def __init__(self) -> None:
        self.words = memoryview(mmap.mmap(-1, 16 * len(KEYS))).cast("Q")

    def set(self, key: int, which: int, number: int) -> None:
        self.words[2 * key + which] = number  # one whole word: its writer may be killed

    def get(self, key: int) -> tuple[int, int]:
        return self.words[2 * key], self.words[2 * key + 1]


def _works(store: Any, notes: Notes, keys: range, seed: int) -> None:
    """Write ever higher numbers to own keys, and read them, until it is killed."""
    rng = random.Random(seed)
    store = limpet.open(store.pool.url).store(store.kind, name="test")
    while True:
        key = rng.choice(keys)
        intended, acknowledged = notes.get(key)
        found = store.get(KEYS[key])
        number = int(found[:20]) if found else 0
        assert acknowledged <= number <= intended, (key, acknowledged, number, intended)
        notes.set(key, 0, intended + 1)
        store.put(KEYS[key], b"%020d" % (intended + 1) * rng.choice((1, 8, 40)))
        notes.set(key, 1, intended + 1)


@pytest.mark.exhaustive("every kind", quick=["fusee-2"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_nodes_are_replaced_while_clients_work_and_are_killed(
    make_store: Callable[..., Any], kind: str, replicas: int
) -> None:
    if store_class(kind).majorities and replicas == 2:
        pytest.skip("there is no majority of two")
    store = make_store(
        pool_nodes=4, pool_node_size="4MiB", pool_block_size="16KiB", capacity=300,
        replicas=replicas,
    )  # fmt: skip
    rng = random.Random(replicas)
    notes, workers = Notes(), 3
    running: dict[int, int] = {}

    def puts() -> int:
        return sum(notes.get(key)[1] for key in range(len(KEYS)))

    def begin(number: int) -> None:
        keys = range(number, len(KEYS), workers)
        seed = rng.getrandbits(32)
        running[number], out = start(lambda: _works(store, notes, keys, seed))
        out.close()

    def end(number: int) -> None:
        pid = running.pop(number)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    try:
        for number in range(workers):
            begin(number)
        for _ in range(12 if COMPILED else 3):
            node = rng.randrange(4)
            before = puts()
            store.pool.fail_node(node)
            until(lambda goal=before + 20: puts() >= goal, "no client gets on", within_s=60)
            number = rng.randrange(workers)
            end(number)
            assert store.pool.replace_node(node)["node"] == node
            begin(number)
        assert all(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in running.values())
    finally:
        for number in list(running):
            end(number)
    sound(store)
    for key in range(len(KEYS)):
        intended, acknowledged = notes.get(key)
        found = store.get(KEYS[key])
        assert acknowledged <= (int(found[:20]) if found else 0) <= intended
    assert [node["state"] for node in store.pool.nodes()] == ["in service"] * 4


@pytest.mark.exhaustive("every kind", quick=["fusee"])
def test_the_leader_is_killed_while_clients_wait(make_store: Callable[..., Any], kind: str) -> None:
    """A waiting client puts the node back, and goes on."""
    store = make_store(pool_nodes=4, capacity=300, replicas=replicas_of(kind, 1))
    store.put_many((key, value(key, 0)) for key in KEYS)

    def replaces(fuse: int) -> None:
        assert store.pool.client_id
        store.pool.endpoint.fuse = fuse
        store.pool.replace_node(1)
        os.kill(os.getpid(), signal.SIGTERM)

    killed = 0
    for fuse in [*range(1, 60, 3 if COMPILED else 12), 200, 600, 1200, 3000, 5000, 1_000_000]:
        store.pool.fail_node(1)
        pid, out = start(lambda fuse=fuse: replaces(fuse))
        out.close()
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            key = KEYS[fuse % len(KEYS)]
            store.put(key, store.get(key))
        killed += os.waitstatus_to_exitcode(ended[1]) == -signal.SIGKILL
        there(store, 0)
        sound(store)
    assert killed
    assert store.pool.nodes()[1]["state"] == "in service"
