"""Trees changed in place: torn nodes, half splits, locks of the dead, table 2 of the paper."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedPool
from kit.mutants.uncompiled import IN_PLACE, Change, always, nothing, replaced, store_in_force
from kit.parts import runs_of
from kit.processes import children
from kit.stores import sound
from kit.trees import LeafSplit, Merge

import limpet
from limpet.fault.explore.explorer import Exploration, ExplorerReport, explore
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile
from limpet.fault.matrix.operations import KEY, NEW, OLD, Operation
from limpet.fault.matrix.testbed import StoreTestbed
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import PIN
from limpet.shm.errors import StoreStuck
from limpet.stores.transactions.layout import DOING

COMPILED = BUILD == "compiled"
OLD8, NEW8 = b"12345678", b"87654321"
SMALL = {"node_size": 320, "key_size": 16, "value_size": 32}


def explored(kind: str, runs: int, **more: Any) -> ExplorerReport:
    chosen = {"value_size": 40, "crashes": 0, "stalls": 0, "seed": 7, **more}
    return explore(Exploration(store=kind, schedules=runs_of(runs), **chosen))


def grown(pools: Any, kind: str, keys: int, **parameters: Any) -> Any:
    """A store with so many keys, in nodes of 1 KiB if nothing else is said, about half full."""
    store = pools().store(kind, name="test", capacity=1000, **parameters)
    for number in reversed(range(keys)):
        store.put(b"%04d" % number, OLD8)
    return store


@contextlib.contextmanager
def varied(store: Any, step: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """Have the changes by this handle take this step otherwise."""
    before = store.writer.commit
    store.writer.commit = type("Varied", (before,), {step: wrong})
    store.writer.spares.clear()
    try:
        yield
    finally:
        store.writer.commit = before
        store.writer.spares.clear()


@contextlib.contextmanager
def in_force(kind: str, *changes: Change) -> Iterator[None]:
    """Have stores of this kind, made meanwhile, be of uncompiled modules with these changes."""
    with store_in_force(IN_PLACE, STORES[kind], changes):
        yield


STORES = {
    "sherman": ("sherman/plain", "Sherman"),
    "dtx-sherman": ("baselines/dtx/sherman", "DtxSherman"),
}


def test_an_error_gives_the_locks_back_within_the_operation(pools: Any) -> None:
    """Afterwards another thread of this client may have locked the node, and has the same id."""
    pool = pools()
    pool.store("sherman", name="test", capacity=1000).put(b"k", OLD8)
    watched = pools.keep(WatchedPool.open(pool.url))
    store = watched.store("sherman", name="test")
    store.get(b"k")
    locked: list[int] = []
    pins: list[int] = []

    def before(verb: str, address: int) -> None:
        if locked and not pins:
            pins.append(0)
            raise Interrupted

    def after(verb: str, address: int) -> None:
        if verb != "cas":
            return
        if pins and address in locked:
            pins.append(watched.endpoint.load(watched.client.slot + PIN))
        locked.append(address)

    watched.endpoint.before, watched.endpoint.after = before, after
    with pytest.raises(Interrupted):
        store.put(b"k", NEW8)
    watched.endpoint.before = watched.endpoint.after = None
    assert len(pins) == 2
    assert pins[1] != 0
    store.put(b"k", NEW8)
    assert pool.store("sherman", name="test").get(b"k") == NEW8


@pytest.mark.parametrize("size", [8, 5000])
@pytest.mark.parametrize(
    ("step", "value"), [("_decide", b"1"), ("_write_back", b"2"), ("unlock_all", b"2")]
)
def test_an_error_after_the_decision_leaves_nothing_undone(
    pools: Any, step: str, value: bytes, size: int
) -> None:
    """The log is carried out under the locks, before they are given back."""
    store = grown(pools, "dtx-sherman", 3)
    store.put(b"k", b"1" * size)

    def interrupted(*arguments: Any) -> None:
        raise Interrupted

    with varied(store, step, interrupted), pytest.raises(Interrupted):
        store.put(b"k", b"2" * size)
    other = pools.keep(limpet.Pool.open(store.pool.url)).store("dtx-sherman", name="test")
    assert other.get(b"k") == value * size
    other.put(b"k", b"3" * size)
    assert store.get(b"k") == b"3" * size
    sound(store)


# ---- costs ---------------------------------------------------------------------------------------

LOG_HEADER = 32 + 32 + 8
"""Bytes: of the header; an entry, and the count; the state. The paper's table omits it."""
TABLE_2 = {
    "sherman": {"bytes_read": 1024, "bytes_written": 1024 + 8, "cas": 1},
    "dtx-sherman": {
        "bytes_read": 1024 + 16,
        "bytes_written": 2 * 1024 + 8 + LOG_HEADER,
        "cas": 1,
    },
    "rtx-sherman": {"bytes_read": 1024 + 16, "bytes_written": 1024, "cas": 3},
}
"""Of an insert that splits nothing, of an 8 B value, with the inner nodes in the cache. The paper's
8 bytes of rtx are its log's state; where there is no log there is none."""


@pytest.mark.parametrize("kind", TABLE_2)
def test_table_2(pools: Any, kind: str) -> None:
    store = grown(pools, kind, 400)
    for number in range(400):
        store.get(b"%04d" % number)
    for number in range(0, 400, 40):
        store.allocator.replenish_all(0, [1024] * 4)
        store.endpoint.reset_counters()
        store.insert(b"%04d!" % number, OLD8)
        stats = store.stats()
        assert {name: stats[name] for name in TABLE_2[kind]} == TABLE_2[kind]


# ---- the tree ------------------------------------------------------------------------------------


def test_sherman_holds_under_the_explorer() -> None:
    for size in (16, 64):  # values in extents, and in nodes
        assert explored("sherman", 300, parameters={"value_size": size}).failures == ()


@pytest.mark.parametrize("end", [16, 40, 200, 1008])
def test_a_torn_node_is_read_again(pools: Any, end: int) -> None:
    """R8. A key in it is not reported missing, nor given an old value."""
    waits: list[int] = []

    def await_holder(store: Any, attempt: int, writes: bool) -> int:
        waits.append(attempt)
        if len(waits) == 3:
            store.endpoint.write(root, whole)
        return 0

    with in_force("sherman", replaced("sherman/plain", "Sherman.await_holder", await_holder)):
        store = grown(pools, "sherman", 3)
    root = int(store.trees.roots[0])
    whole = store.endpoint.read(root, 1024)
    works: list[Callable[[], object]] = [
        lambda: store.get(b"0002"),
        lambda: list(store.scan())[2][1],
        lambda: OLD8[len(store) - 3 :],
    ]
    for work in works:
        store.endpoint.write(root + end, bytes(1024 - end))
        waits.clear()
        assert work() == OLD8
        assert waits == [1, 2, 3]


def test_versions_do_not_tell_what_a_reader_who_is_overtaken_has_read(pools: Any) -> None:
    """It reads the new front, stops, and reads the new rear when the write is over."""
    store = grown(pools, "sherman", 3)
    root = int(store.trees.roots[0])
    before = store.endpoint.read(root, 1024)
    for key in (b"0000", b"0001", b"0002"):
        store.update(key, NEW8)
    after = store.endpoint.read(root, 1024)
    node = store.trees.blank().page
    node.read(root)
    assert node.is_whole()
    for end in range(16, 1008, 8):
        torn = after[:end] + before[end:1000] + after[1000:]
        store.endpoint.write(root, torn)
        node.read(root)
        assert node.is_whole() == (torn == after)
    store.endpoint.write(root, after)
    sound(store)


def test_a_new_node_that_nothing_above_links_to_is_found(pools: Any) -> None:
    """A client that splits a leaf and then comes no further."""
    left_out = replaced("sherman/in_place_write_set", "InPlaceWriter._link_all_above", nothing)
    with in_force("sherman", left_out):
        store = grown(pools, "sherman", 100, **SMALL)
    other = pools.again(store.pool).store("sherman", name="test")
    keys = [b"%04d" % number for number in range(100)]
    assert other.get_many(keys) == [OLD8] * 100
    assert [key for key, _ in other.scan()] == keys
    sound(store)
    for key in keys:
        other.delete(key)
    assert len(store) == 0
    sound(store)


def test_a_remembered_leaf_may_be_an_extent_of_zeros_now(pools: Any) -> None:
    """An address that leads to other memory is not taken for a leaf, nor locked as one."""
    store = grown(pools, "sherman", 100, **SMALL)
    other = pools.again(store.pool).store("sherman", name="test")
    keys = [b"%04d" % number for number in range(100)]
    assert other.get_many(keys) == [OLD8] * 100
    for key in keys:
        store.delete(key)
    for number in range(3000):
        store.put(b"extent", bytes(200 + number % 100))
    for number in range(300):
        store.put(b"extent %d" % number, bytes(200))
    assert other.get_many(keys) == [None] * 100
    for key in keys:
        other.insert(key, b"again")
    sound(store)
    assert store.get_many(keys) == [b"again"] * 100


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
@pytest.mark.parametrize("kind", ["sherman", "dtx-sherman"])
def test_scan_in_reverse_order_leaves_a_remembered_leaf_that_is_none_now(
    pools: Any, kind: str
) -> None:
    """It goes down from the root then, and does not wait for that leaf."""
    store = grown(pools, kind, 100, **SMALL)
    other = pools.again(store.pool).store(kind, name="test")
    keys = [b"%04d" % number for number in range(100)]
    assert other.get_many(keys) == [OLD8] * 100
    for key in keys:
        store.delete(key)
    for number in range(3000):
        store.put(b"extent", bytes(200 + number % 100))
    store.put(b"0050", NEW8)
    assert [key for key, _ in other.scan(reverse=True)] == [b"extent", b"0050"]
    assert [key for key, _ in other.scan(b"0", b"1", reverse=True)] == [b"0050"]
    sound(store)


# ---- locks of the dead ---------------------------------------------------------------------------


def kill_at(store: Any, where: str, die: Callable[..., Any] | None = None) -> None:
    """Have another client die there when it updates the key 0000; `die`: instead of that step."""

    def work() -> None:
        with varied(store, where, die or (lambda *_: os.kill(os.getpid(), signal.SIGKILL))):
            store.update(b"0000", NEW8)

    with children([work]) as running:
        assert os.waitstatus_to_exitcode(os.waitpid(running[0][0], 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("recovers_first", [False, True])
def test_who_waits_for_a_dead_client_is_told(pools: Any, recovers_first: bool) -> None:
    store = grown(pools, "sherman", 60)
    kill_at(store, "_write_back")
    if recovers_first:
        assert len(store.recover()["clients"]) == 1
    says = rf"client 0x\w+ died .* 0x\w+ in {store.pool.url}; .* and dtx-sherman stores do"
    for write in (store.put, store.insert, store.update):
        with pytest.raises(StoreStuck, match=says):
            write(b"0000", b"v")
    with pytest.raises(StoreStuck, match=says):
        store.delete(b"0000")
    assert store.get(b"0000") == OLD8
    assert len(list(store.scan())) == 60
    store.put(b"0059", b"v")
    assert store.pool.audit()["leaked"] == 0
    assert isinstance(StoreStuck(""), limpet.StoreError)


def test_a_reader_of_a_node_that_a_dead_client_has_torn_is_told(pools: Any) -> None:
    store = grown(pools, "sherman", 60)

    def cut(commit: Any, nodes: list[tuple[int, Any]]) -> None:
        for at, node in nodes:
            node.put(at)
            node.endpoint.write(at, bytes(512))
            os.kill(os.getpid(), signal.SIGKILL)

    kill_at(store, "_write_back", cut)
    for work in (
        lambda: store.get(b"0000"),
        lambda: store.update(b"0000", b"v"),
        lambda: list(store.scan()),
    ):
        with pytest.raises(StoreStuck, match="died"):
            work()
    assert store.get(b"0059") == OLD8


@pytest.mark.parametrize(("where", "value"), [("_decide", OLD8), ("_write_back", NEW8)])
def test_a_reader_waits_for_what_is_decided(pools: Any, where: str, value: bytes) -> None:
    """Else it would read an old value, and recovery bring a new one."""
    store = grown(pools, "dtx-sherman", 60)
    kill_at(store, where)
    assert store.get(b"0000") == value
    assert [client["ours"] for client in store.pool.clients()] == [True]
    assert store.get(b"0000") == value
    store.update(b"0000", b"v")
    sound(store)


# ---- changes of several nodes, killed and stopped ------------------------------------------------


CASES: dict[str, tuple[type[StoreTestbed], Operation]] = {
    "split": (LeafSplit, Operation("insert", lambda pool, kv: kv.insert(KEY, NEW), None, NEW)),
    "merge": (Merge, Operation("delete", lambda pool, kv: kv.delete(KEY), OLD, None)),
}


compiled_only = pytest.mark.skipif(not COMPILED, reason="many runs")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices make trees of small nodes."""
    monkeypatch.setitem(
        FAULT_PROFILES, "dtx-sherman", FaultProfile(SMALL, matrix_nodes=1, waits_for_stopped=True)
    )


@pytest.mark.exhaustive("every step", quick=["killed-*"])
@compiled_only
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["killed", "killed twice", "stopped"])
def test_changes_of_several_nodes_happen_as_a_whole(case: str, how: str) -> None:
    scene, operation = CASES[case]
    matrix = Matrix("dtx-sherman", 24, scene)
    operation = dataclasses.replace(operation, fresh=True)
    if how == "stopped":
        result = matrix.stopped(operation, "wait")
    else:
        result = (matrix.killed if how == "killed" else matrix.killed_twice)(operation)
    assert result.failures == ()
    assert result.steps > 200
    assert result.tried > 2


def test_dtx_holds_under_the_explorer() -> None:
    for size in (16, 64):  # values in extents, and in nodes
        parameters = {"value_size": size}
        report = explored("dtx-sherman", 200, crashes=2, stalls=1, parameters=parameters)
        assert report.failures == ()


@compiled_only
def test_without_validation_updates_are_lost() -> None:
    with in_force("dtx-sherman"):  # the shipped source, run as the variant is
        assert explored("dtx-sherman", 100, parameters={"value_size": 64}).failures == ()
    unchecked = replaced("sherman/in_place_commit", "InPlaceCommit._is_as_read", always)
    with in_force("dtx-sherman", unchecked):
        assert len(explored("dtx-sherman", 1000, parameters={"value_size": 64}).failures) == 1


@pytest.mark.exhaustive("many runs")
@compiled_only
@pytest.mark.usefixtures("small")
def test_what_is_decided_and_not_carried_out_is_noticed() -> None:
    """A recovery that only unlocks leaves half of a split."""
    scene, operation = CASES["split"]
    with in_force("dtx-sherman", replaced("baselines/dtx/log", "ValueLog.settle", unlock_only)):
        result = Matrix("dtx-sherman", 60, scene).killed(dataclasses.replace(operation, fresh=True))
    assert result.failures


def unlock_only(log: Any) -> bool:
    for entry in log.entries():
        if entry.at:
            log.endpoint.cas(log.locks.word(entry.at), log.owner(), 0)
    return bool(log.state() == DOING)
