"""LOCO's kvstore: no client waits in vain, indexes, repair; and faults that `check` finds."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.endpoints import WatchedPool
from kit.processes import children, end, exit_code, fork, gather

import limpet
from limpet.fault.inject.stopping import StoppingPool, stops
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NodeLayout
from limpet.shm.parameters import PoolParameters
from limpet.stores.loco import check as loco_check
from limpet.stores.loco.layout import (
    ARRAY_MAX,
    CHECKSUM,
    CLAIM,
    CLAIMED,
    COUNTER_MAX,
    COUNTER_SHIFT,
    INSERTING,
    INTENT_ENTRY_MASK,
    KEY,
    LATE_MAX,
    LINK,
    LOCK_SHIFT,
    ROW_BITS,
    STATE,
    VACANT,
    VALID,
)
from limpet.stores.loco.parameters import LocoParameters

OLD, NEW = b"old", b"new"
KEYS = [b"%d" % number for number in range(20)]
WAITS_S = 1.0
"""Seconds; an operation that waits for no client takes less."""


def make(pools: Any, pool: dict[str, Any] | None = None, **parameters: Any) -> Any:
    return pools(**(pool or {})).store("loco", name="test", **parameters)


# ---- a node that is replaced ---------------------------------------------------------------------


def test_replaced_node_leaves_the_indexes_of_the_others(pools: Any) -> None:
    """Its own keys are lost; gets of the others read what they read before, not a whole table."""
    store = make(pools, {"nodes": 3}, capacity=300)
    keys = [b"%d" % number for number in range(90)]
    for key in keys:
        store.put(key, b"v")
    kept = [key for key in keys if store.lookup.node_of(key) != 1]
    assert 0 < len(kept) < len(keys)

    def read() -> int:
        """Bytes that gets of all that is left read, also in the background."""
        before = total(store.stats())
        assert [store.get(key) for key in kept] == [b"v"] * len(kept)
        return total(store.stats()) - before

    def total(stats: dict[str, Any]) -> int:
        return int(stats["bytes_read"] + stats["background"]["bytes_read"])

    usual = read()
    store.pool.fail_node(1)
    store.pool.replace_node(1)
    assert read() < usual + store.parameters.entries * 8, "it has looked at a whole table"
    for key in keys:
        if key not in kept:
            with pytest.raises(limpet.NodeFailed):
                store.get(key)
    store.put(kept[0], b"again")
    assert store.get(kept[0]) == b"again"


# ---- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("key_size", 256), ("value_size", 4097), ("locks", 3), ("locks", 8192), ("tracker", 1),
     ("tracker", 100), ("locks", True), ("key_size", "8")],
)  # fmt: skip
def test_parameters_that_cannot_be(pools: Any, name: str, value: Any) -> None:
    with pytest.raises(limpet.ParameterError, match=name):
        make(pools, capacity=10, **{name: value})


@pytest.mark.parametrize(("key_size", "value_size"), [(0, 0), (1, 9), (32, 64), (255, 4096)])
def test_parts_of_a_table_do_not_overlap(key_size: int, value_size: int) -> None:
    made = LocoParameters(10, 1, 22, key_size, value_size, 4, 16, 22)
    words = 4 + -(-key_size // 8) + -(-value_size // 8)
    assert made.entry_words == words
    assert made.locks_at >= 64 + 8 * 16
    assert made.record_size >= made.journal_at + 16 + 8 * (words - 1)
    assert made.entries_at == made.locks_at + 4 * made.record_size
    assert made.table_size == made.entries_at + 22 * 8 * words
    assert made.locks_at % 64 == made.record_size % 64 == 0


# ---- parts of the data array ---------------------------------------------------------------------


def looked_at(store: Any, work: Callable[[], object]) -> int:
    """Words of memory that were read meanwhile, in entries; also in the background."""

    def total() -> int:
        stats = store.stats()
        return int(stats["bytes_read"] + stats["background"]["bytes_read"])

    before = total()
    work()
    return (total() - before) // (8 * store.parameters.entry_words)


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
def test_first_operation_looks_at_one_part_of_a_large_table(pools: Any) -> None:
    pool = pools(node_size="16MiB")
    store = pool.store("loco", name="test", capacity=40_000, key_size=8, value_size=8)
    part = store.parameters.part
    assert store.parameters.parts == 10
    for number in range(9000):
        entries = looked_at(store, lambda key=b"%d" % number: store.insert(key, OLD))  # type: ignore[misc]
        assert entries < 2.5 * part
    other = pools.again(pool).store("loco", name="test")
    assert looked_at(other, lambda: other.get(b"17")) < 2.5 * part
    assert looked_at(other, lambda: other.get(b"17")) < 5
    assert looked_at(other, lambda: [other.get(b"%d" % number) for number in range(9000)]) < (
        other.parameters.entries + 2 * 9000
    )
    assert [other.get(b"%d" % number) for number in range(9010)] == [OLD] * 9000 + [None] * 10


def test_insert_into_a_full_part_looks_at_no_other(pools: Any) -> None:
    """Keys whose home is full are found by handles that begin later, and by those that had begun,
    until no entry is left; then, too, and when others have been deleted."""
    pool = pools()
    store = pool.store("loco", name="test", capacity=60, part=4, key_size=8, value_size=8)
    early = pools.again(pool).store("loco", name="test")
    assert early.get(b"0") is None
    model: set[bytes] = set()
    source = random.Random(3)
    for number in range(store.parameters.entries):
        store.insert(b"%d" % number, OLD)
        model.add(b"%d" % number)
    with pytest.raises(limpet.StoreFull):
        store.insert(b"one more", OLD)
    for turn in range(4):
        late = pools.again(pool).store("loco", name="test")
        for each in (early, late, store):
            for key in [*sorted(model, key=hash64), b"no"]:
                assert each.get(key) == (OLD if key in model else None)
            each.check()
        for key in source.sample(sorted(model), len(model) // 2):
            (early, late)[turn % 2].delete(key)
            model.remove(key)
        for number in range(1000 * turn + 1000, 1000 * turn + 1020):
            late.insert(b"%d" % number, OLD)
            model.add(b"%d" % number)


def test_reach_that_cannot_be_is_damage(pools: Any) -> None:
    pool = pools()
    store = pool.store("loco", name="test", capacity=60, part=4)
    index = store.lookup.indexes[0]
    for part in range(index.parts):
        store.endpoint.store(index.reaches + 8 * part, index.parts)
    with pytest.raises(limpet.StoreCorrupt, match="reach"):
        store.get(b"k")


def test_key_beyond_the_reach_of_its_part_is_damage(pools: Any) -> None:
    pool = pools()
    store = pool.store("loco", name="test", capacity=60, part=4)
    for number in range(60):
        store.insert(b"%d" % number, OLD)
    index = store.lookup.indexes[0]
    for part in range(index.parts):
        store.endpoint.store(index.reaches + 8 * part, 0)
    with pytest.raises(limpet.StoreCorrupt, match="beyond the reach"):
        store.check()


# ---- lives of entries ----------------------------------------------------------------------------


def test_an_entry_whose_counter_is_used_up_is_not_claimed_again(pools: Any) -> None:
    """Counters do not wrap (L3)."""
    store = make(pools, capacity=1)
    entries = store.found.entries
    for entry in range(1, entries.count):
        store.endpoint.store(entries.address(entry), COUNTER_MAX << COUNTER_SHIFT | VACANT)
    last = COUNTER_MAX - 1 << COUNTER_SHIFT
    store.endpoint.store(entries.address(0), last)
    store.insert(b"k", OLD)
    assert (
        store.endpoint.load(entries.address(0))
        == last + (1 << COUNTER_SHIFT)
        | VALID
        | store.found.index.lock_of(hash64(b"k")) << LOCK_SHIFT
    )
    store.delete(b"k")
    with pytest.raises(limpet.StoreFull):
        store.insert(b"k", OLD)


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower", quick=["0"])
@pytest.mark.parametrize("seed", range(4))
def test_an_index_finds_the_entries_that_it_has_and_no_others(pools: Any, seed: int) -> None:
    """Hashes meet, and places at the end of the table go on at its beginning."""
    store = make(pools, capacity=20)
    store.get(b"k")
    index, source = store.found.index, random.Random(seed)
    places = [0, 1, 2, index.mask - 1, index.mask]
    hashes = [place + above * (index.mask + 1) << ROW_BITS for place in places for above in (0, 1)]
    there: set[tuple[int, int]] = set()
    for _ in range(600):
        pair = source.randrange(index.entries.count), source.choice(hashes)
        if source.random() < 0.5 and len(there) < index.most:
            there.add(pair)
            index.note_change(*pair, CLAIMED)
        else:
            there.discard(pair)
            index.note_change(*pair, VACANT)
        for hashed in hashes:
            found = []
            at = index.find(hashed)
            while at >= 0:
                found.append(at)
                at = index.find_next()
            assert sorted(found) == sorted(e for e, h in there if h == hashed)
            assert all(index.has(e, hashed) == ((e, hashed) in there) for e, _ in there)
        assert index.used == len(there)


def test_an_index_that_is_crowded_begins_anew(pools: Any) -> None:
    """Entries that others fill and empty under locks which this client never uses stay in it."""
    store = make(pools, capacity=20, locks=64, value_size=8)
    late = pools.again(store.pool).store("loco", name="test")
    first = dict.fromkeys((b"a%d" % number for number in range(20)), OLD)
    for round_ in range(40):
        keys = [b"%d.%d" % (round_, number) for number in range(20)]
        store.put_many(dict.fromkeys(keys, OLD))
        assert late.get_many(keys) == [OLD] * 20
        for key in keys:
            store.delete(key)
        assert late.found.index.used <= late.found.index.most
    store.put_many(first)
    assert late.get_many(list(first)) == [OLD] * 20
    store.check()


def test_a_client_finds_entries_that_were_vacated_under_locks_which_it_never_uses(
    pools: Any,
) -> None:
    store = make(pools, capacity=1, locks=64)
    count = store.found.entries.count
    late = pools.again(store.pool).store("loco", name="test")
    keys = [b"%d" % number for number in range(count)]
    store.put_many(dict.fromkeys(keys, OLD))
    assert late.get_many(keys) == [OLD] * count
    for key in keys:
        store.delete(key)
    late.insert(b"new", NEW)
    assert store.get(b"new") == NEW


def test_a_tracker_tells_what_was_appended_while_its_ring_has_it(pools: Any) -> None:
    store = make(pools, capacity=1, tracker=4, locks=2)
    trackers = store.found.index.trackers
    for number in range(10):
        trackers.append(1, number, 100 + number)
    assert (trackers.position(0), trackers.position(1)) == (0, 10)
    assert [trackers.read(1, number, 4) for number in range(10)] == [-1] * 7 + [1, 4, 3]
    assert trackers.read(1, 8, 2) == 2
    assert list(trackers.words[:2]) == [108, 109]
    with pytest.raises(limpet.StoreCorrupt, match="the tracker"):
        trackers.append(0, (1 << 62) + 1, 7)


@pytest.mark.parametrize("capacity", [1, 56, 57, 1000, 300_000])
def test_a_ring_has_a_message_for_every_entry(capacity: int) -> None:
    pool = PoolParameters(nodes=2, node_size=1 << 28)
    parameters = LocoParameters.for_pool(pool, NodeLayout.of(pool), capacity=capacity)
    messages = parameters.locks * parameters.tracker
    assert parameters.entries <= messages <= max(16 * 16, 2 * parameters.entries)
    assert 16 <= parameters.locks <= max(16, parameters.entries // 16)


# ---- late clients (L4) ---------------------------------------------------------------------------


def looks(store: Any) -> int:
    return int(store.stats()["background"]["reads"])


def test_a_late_reader_looks_at_what_it_missed_and_not_at_the_table(pools: Any) -> None:
    store = make(pools, {"node_size": "2MiB"}, capacity=1500, value_size=8, locks=1)
    late = pools.again(store.pool).store("loco", name="test")
    assert late.get(b"k") is None
    before, changes = looks(late), 0
    for _ in range(3):
        for number in range(260):
            store.insert(b"%d" % number, OLD)
            store.delete(b"%d" % number)
            changes += 2
        assert late.get(b"k") is None
        assert looks(late) - before <= changes // 8 + 9  # 64 messages in one read


def test_a_writer_makes_no_index_while_it_holds_a_lock(pools: Any) -> None:
    store = make(pools, capacity=60, locks=1, tracker=4)
    watched = pools.keep(WatchedPool.open(store.pool.url))
    late = watched.store("loco", name="test")
    held = []

    def look(verb: str, address: int) -> None:
        if verb == "read_words" and address == late.found.entries.address(0):
            held.append(store.locking.lock(0, 0).locked())

    watched.endpoint.after = look
    assert late.get(b"k") is None
    for work in (
        lambda: late.put(b"k", NEW),
        lambda: late.delete(b"k"),
        lambda: late.recover(),
    ):
        store.put_many(dict.fromkeys(KEYS, OLD))
        for key in KEYS:
            store.delete(key)
        journal = store.lookup.tables[0] + store.parameters.locks_at + store.parameters.journal_at
        store.endpoint.store(journal + CLAIM, 1)  # of another life: nothing is to be repaired
        store.endpoint.store(journal, INSERTING)
        work()
        assert store.endpoint.load(journal) & INTENT_ENTRY_MASK == 0
    assert held == [False] * 4
    assert store.get(b"k") is None
    store.check()


def test_a_writer_that_is_late_every_time_gets_on(pools: Any) -> None:
    """Others announce more than the ring has room for whenever it makes its index anew."""
    store = make(pools, capacity=60, locks=1, tracker=4)
    mine, theirs, *_ = KEYS
    watched = pools.keep(WatchedPool.open(store.pool.url))
    late = watched.store("loco", name="test")
    times = [0]

    def disturb(verb: str, address: int) -> None:
        if verb == "read_words" and address == late.found.entries.address(
            late.found.entries.count - 1
        ):
            times[0] += 1
            for _ in range(0 if store.locking.lock(0, 0).locked() else 3):
                store.insert(theirs, OLD)
                store.delete(theirs)

    watched.endpoint.after = disturb
    late.put(mine, NEW)
    watched.endpoint.after = None
    assert times[0] == 2 + LATE_MAX
    assert late.get(mine) == store.get(mine) == NEW
    store.check()


# ---- no client is waited for (L1) ---------------------------------------------------------------


def test_a_stopped_process_holds_up_no_insert_and_reads_right_when_it_goes_on(pools: Any) -> None:
    """It has an index, and is not in an operation; its trackers are overtaken meanwhile."""
    store = make(pools, {"fence": "wait"}, capacity=500, tracker=16, locks=4)
    keys = [b"%d" % number for number in range(300)]
    store.put_many(dict.fromkeys(keys, OLD))

    def child() -> list[bytes | None]:
        assert store.get(keys[0]) == OLD
        os.kill(os.getpid(), signal.SIGSTOP)
        return list(store.get_many([*keys, b"x"]))

    with children([child]) as [(pid, out)]:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        start = time.monotonic()
        for key in keys[::2]:
            store.delete(key)
        store.insert(b"x", NEW)
        assert time.monotonic() - start < WAITS_S
        os.kill(pid, signal.SIGCONT)
        found = pickle.loads(out.read())
    assert found == [None if n % 2 == 0 else OLD for n in range(300)] + [NEW]


def test_many_processes_see_what_others_insert_at_once(pools: Any) -> None:
    """A key that any process inserted is there before another process hears of it."""
    store = make(pools, capacity=1000, tracker=8, locks=4)
    count = 150

    def child(number: int) -> int:
        missed = 0
        for step in range(count):
            store.insert(b"%d.%d" % (number, step), OLD)
            store.put(b"last %d" % number, b"%d" % step)
            for other in range(3):
                last = store.get(b"last %d" % other)
                if last is not None and store.get(b"%d.%s" % (other, last)) is None:
                    missed += 1
        return missed

    assert gather(*(lambda number=number: child(number) for number in range(3))) == [0, 0, 0]
    assert len(store) == 3 * count + 3
    store.check()


def test_threads_of_one_handle_take_turns(pools: Any) -> None:
    store = make(pools, capacity=100, locks=1)

    def work(number: int) -> None:
        for step in range(200):
            store.put(b"%d" % number, b"%d" % step)
            store.put(b"shared", b"%d" % step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get_many([b"0", b"1", b"2", b"3", b"shared"]) == [b"199"] * 5
    store.check()


def test_a_forked_child_goes_on_with_the_index_of_its_parent(pools: Any) -> None:
    store = make(pools, capacity=100)
    store.put(b"k", OLD)

    def child() -> tuple[bytes | None, bytes | None]:
        store.insert(b"child", NEW)
        return store.get(b"k"), store.get(b"child")

    assert gather(child) == [(OLD, NEW)]
    assert store.get(b"child") == NEW


def test_who_makes_a_large_index_does_not_seem_to_stand_still(pools: Any) -> None:
    """It does so within an operation, perhaps with a lock, and must not be killed for it."""
    pool = pools(node_size="4MiB")
    sizes = {"capacity": 13_000, "part": 13_000, "key_size": 8, "value_size": 0}
    pool.store("loco", name="test", **sizes).put(b"k", b"")
    watched = pools.keep(WatchedPool.open(pool.url))
    store = watched.store("loco", name="test")
    reads = [0]
    pool.membership.now = lambda: reads[0] * pool.membership.lease_s / 5000

    def look(verb: str, address: int) -> None:
        if verb == "read_words":
            reads[0] += 1
            if reads[0] % 500 == 0:
                (laggard,) = pool.grace.pinned()
                assert not pool.membership.stands_still("memory", laggard)

    watched.endpoint.after = look
    assert store.get(b"k") == b""
    assert reads[0] > 13_000


# ---- the dead ------------------------------------------------------------------------------------


def killed_in(store: Any, work: Callable[[], object], step: int) -> None:
    """A child does this, and is killed at that step."""

    def child() -> None:
        store.get(b"k")
        store.endpoint.fuse = step
        work()

    with children([child]) as [(pid, _)]:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def is_torn(store: Any) -> bool:
    """Whether the entry that was found last is being written, or was by a client that is dead."""
    entries = store.found.entries
    store.client.enter()
    try:
        entries.read(store.found.entry)
        return not entries.is_whole()
    finally:
        store.client.leave()


def torn(store: Any) -> None:
    """A child dies in an update of b"k", while it writes the entry."""
    for step in range(1, 60):
        store.put(b"k", OLD)
        killed_in(store, lambda: store.update(b"k", NEW), step)
        if is_torn(store):
            return
    raise AssertionError("no entry is torn")


@pytest.fixture
def torn_store(pools: Any) -> Any:
    store = make(pools, capacity=10, locks=1)
    store.put(b"k", OLD)
    assert store.get(b"k") == OLD
    torn(store)
    return store


def test_a_get_repairs_what_a_dead_client_was_writing(torn_store: Any) -> None:
    before = torn_store.stats()["repairs"]
    assert torn_store.get(b"k") == NEW
    assert torn_store.stats()["repairs"] == before + 1
    torn_store.check()


def test_get_many_repairs_what_a_dead_client_was_writing(torn_store: Any) -> None:
    assert torn_store.get_many([b"j", b"k"]) == [None, NEW]
    torn_store.check()


@pytest.mark.parametrize("size", [40, 500])
def test_a_get_waits_for_no_client_that_stands_still_in_an_update(pools: Any, size: int) -> None:
    """A torn entry, also one that links to an object, has its new value from then on."""
    store = make(pools, {"fence": "wait"}, capacity=10, locks=1)
    old, new = b"o" * size, b"n" * size
    step, tears, stopped = 0, 0, True

    def update() -> None:
        with StoppingPool.open(store.pool.url) as mine:
            there = mine.store("loco", name="test")
            there.get(b"k")
            mine.endpoint.stop_at = step
            there.update(b"k", new)

    pid = 0
    try:
        while stopped:
            store.put(b"k", old)
            step += 1
            pid = fork(update)
            stopped = stops(pid)
            if stopped:
                found = [*store.get_many([b"k", b"j"]), store.get(b"k"), store.get(b"k")]
                value = new if is_torn(store) else found[0]
                tears += is_torn(store)
                assert value in (old, new)
                assert found == [value, None, value, value]
                os.kill(pid, signal.SIGCONT)
            assert exit_code(pid) == 0
            pid = 0
            assert store.get(b"k") == new
    finally:
        if pid:
            end(pid)
    assert tears


def test_recover_repairs_what_a_dead_client_was_writing(torn_store: Any) -> None:
    torn_store.recover()
    repairs = torn_store.stats()["repairs"]
    assert torn_store.get(b"k") == NEW
    assert torn_store.stats()["repairs"] == repairs


def test_entries_that_dead_clients_claimed_are_room(pools: Any) -> None:
    store = make(pools, capacity=1, locks=1)
    count = store.parameters.entries
    keys = [b"%d" % number for number in range(count)]
    for key in keys[1:]:
        store.insert(key, OLD)
    for step in range(4, 20):
        killed_in(store, lambda: store.insert(b"dead", NEW), step)
    store.insert(keys[0], OLD)
    assert sorted(store) == sorted(keys)
    with pytest.raises(limpet.StoreFull, match="capacity 1"):
        store.insert(b"one more", OLD)
    store.check()


# ---- a lost node ---------------------------------------------------------------------------------


def test_a_node_that_is_lost_when_a_lock_was_taken_ends_the_operation(pools: Any) -> None:
    pool = pools(nodes=2)
    watched = pools.keep(WatchedPool.open(pool.url))
    store = watched.store("loco", name="test", capacity=20)
    lost, there = (next(k for k in KEYS if store.lookup.table_of(k) == node) for node in range(2))
    number = store.found.index.lock_of(hash64(lost))

    def lose(verb: str, address: int) -> None:
        if verb == "cas" and address == lock:
            pool.fail_node(0)

    lock = store.locking.lock(0, number).address
    watched.endpoint.after = lose
    with pytest.raises(limpet.NodeFailed):
        store.put(lost, NEW)
    store.put(there, NEW)
    assert store.get(there) == NEW


def test_who_waits_for_a_lock_of_a_node_that_is_replaced_leaves_the_new_memory_alone(
    pools: Any,
) -> None:
    pool = pools(nodes=2)
    store = pool.store("loco", name="test", capacity=20)
    other = pools.again(pool).store("loco", name="test")
    lost, there = (next(k for k in KEYS if store.lookup.table_of(k) == node) for node in range(2))
    number = store.found.index.lock_of(hash64(lost))
    held, waits = (one.locking.lock(0, number) for one in (other, store))
    at = waits.address
    assert held.acquire()
    assert not waits.acquire(0.01)
    pool.fail_node(0)
    pool.replace_node(0)
    with pytest.raises(limpet.NodeFailed):
        waits.acquire(0)
    with pytest.raises(limpet.NodeFailed):
        store.put(lost, NEW)
    store.put(there, NEW)
    assert store.get(there) == NEW
    assert pool.endpoint.load(at) == 0


# ---- what check finds ----------------------------------------------------------------------------


def damage(store: Any, word: int, change: Callable[[int], int]) -> None:
    """Change a word of the entry of b"k"."""
    assert store.get(b"k") == OLD
    at = store.found.entries.address(store.found.entry) + 8 * word
    store.endpoint.store(at, change(store.endpoint.load(at)))


def _twice(store: Any) -> None:
    """Write the entry of b"k" to a vacant one, too."""
    store.get(b"k")
    entries = store.found.entries
    state = entries.state()
    spare = next(n for n in range(entries.count) if not store.endpoint.load(entries.address(n)))
    entries.write(spare, entries.compose(state, b"k", OLD, 0), 0)
    store.endpoint.store(entries.address(spare), state)
    index, hashed = store.found.index, hash64(b"k")
    lock = index.lock_of(hashed)
    index.trackers.append(lock, index.trackers.position(lock), hashed & -1 << ROW_BITS | spare)


DAMAGES: list[tuple[str, Callable[[Any], None]]] = [
    ("checksum", lambda store: damage(store, CHECKSUM, lambda word: word ^ 1)),
    ("checksum", lambda store: damage(store, KEY, lambda word: word ^ 1)),
    ("checksum", lambda store: damage(store, LINK, lambda word: 4096)),
    ("journal", lambda store: damage(store, STATE, lambda word: word ^ VALID ^ 1)),
    ("journal", lambda store: damage(store, STATE, lambda word: word ^ VALID ^ 2)),
    ("also in entry", _twice),
]


@pytest.mark.parametrize(("says", "change"), DAMAGES)
def test_check_says_what_is_wrong(
    says: str, change: Callable[[Any], None], pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loco_check, "LOOKS_MAX", 20)
    store = make(pools, capacity=10)
    store.put(b"k", OLD)
    store.check()
    change(store)
    with pytest.raises(limpet.StoreCorrupt, match=says):
        store.check()


def test_a_damaged_value_is_an_error_and_not_a_value(pools: Any) -> None:
    store = make(pools, capacity=10)
    store.put(b"k", OLD)
    store.put(b"other", OLD)
    damage(store, KEY + 4, lambda word: word ^ 1)
    for work in (
        lambda: store.get(b"k"),
        lambda: store.get_many([b"k"]),
        lambda: store.delete(b"k"),
    ):
        with pytest.raises(limpet.StoreCorrupt, match="memory was damaged"):
            work()
    assert store.get(b"other") == OLD


def test_a_damaged_journal_is_an_error(pools: Any) -> None:
    store = make(pools, capacity=10, locks=1)
    store.put(b"k", OLD)
    journal = store.lookup.tables[0] + store.parameters.locks_at + store.parameters.journal_at
    store.endpoint.store(journal, 1000 << 2 | 1)
    with pytest.raises(limpet.StoreCorrupt, match=r"journal.*damaged"):
        store.put(b"k", NEW)
    assert store.get(b"k") == OLD


@pytest.mark.parametrize("entry", [1000, ARRAY_MAX])
def test_a_damaged_message_is_an_error(pools: Any, entry: int) -> None:
    """It is no signal, and no loop without an end; a client with a new index reads on."""
    store = make(pools, capacity=20, value_size=8, locks=1)
    store.put(b"k", OLD)
    trackers = store.found.index.trackers
    trackers.append(0, trackers.position(0), entry)
    for work in (lambda: store.get(b"k"), lambda: store.insert(b"new", NEW)):
        with pytest.raises(limpet.StoreCorrupt, match="names entry"):
            work()
    reader = pools.again(store.pool).store("loco", name="test")
    assert reader.get(b"k") == OLD
    assert reader.get(b"new") is None


@pytest.mark.parametrize("position", [1 << 63, (1 << 64) - 1, 5])
def test_a_damaged_position_of_a_tracker_gives_no_wrong_value(pools: Any, position: int) -> None:
    store = make(pools, capacity=20, tracker=64, value_size=8, locks=1)
    store.put_many(dict.fromkeys(KEYS, OLD))
    store.endpoint.store(store.found.index.trackers.at(0), position)
    for key in KEYS:
        assert store.get(key) == OLD
    if position > 1 << 62:
        with pytest.raises(limpet.StoreCorrupt, match="the tracker"):
            store.insert(b"new", NEW)
        assert store.get(b"new") is None
    else:  # the index begins anew
        store.insert(b"new", NEW)
        assert store.get(b"new") == NEW


class Meanwhile:
    """An endpoint; other work is done after each of its reads of a batch."""

    def __init__(self, endpoint: Any, work: Callable[[], object]) -> None:
        self.endpoint = endpoint
        self.work = work

    def __getattr__(self, name: str) -> Any:
        return getattr(self.endpoint, name)

    def read(self, addr: int, size: int) -> bytes:
        found: bytes = self.endpoint.read(addr, size)
        self.work()
        return found


def test_keys_are_not_those_of_an_entry_that_changes_while_it_is_read(pools: Any) -> None:
    store = make(pools, capacity=20, value_size=8)
    store.put_many(dict.fromkeys(KEYS, OLD))
    other = pools.again(store.pool).store("loco", name="test")
    check = loco_check.LocoCheck(store)
    check.endpoint = Meanwhile(store.endpoint, lambda: other.delete_many(KEYS[:1]))
    assert sorted(check.keys()) == sorted(KEYS[1:])
