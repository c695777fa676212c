"""Old faults of RCuckoo, step by step: locks, plans of other threads, damaged memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kit.cuckoo import Clients
from kit.puppets import Puppet, PuppetEndpoint, PuppetPool, verb_on

import limpet
from limpet.shm.endpoint.layout import SLOTS_USED
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.core.status import AGAIN, PUT
from limpet.stores.rcuckoo.check import RcuckooCheck
from limpet.stores.rcuckoo.layout import LOOKS_MAX, STATE
from limpet.stores.rcuckoo.repair import Repair
from limpet.stores.rcuckoo.rows import Entry


class _Endpoint(PuppetEndpoint):
    """Meets each beginning of an operation, before others are excluded."""

    hook: Callable[[], None] | None = None

    def begin(self) -> bool:
        if self.hook is not None:
            self.hook()
        return bool(super().begin())


class _Pool(PuppetPool):
    endpoint_class = _Endpoint
    endpoint: _Endpoint


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
def test_a_plan_of_one_thread_is_not_used_by_another(pools: Any) -> None:
    """Both keys' rows and another key's path have more locks than there is room for."""
    pool = pools(nodes=1)
    pool.store("rcuckoo", name="test", capacity=4000, depth=6, rows_per_lock=1)
    pool = pools.keep(_Pool.open(pool.url))
    store = pool.store("rcuckoo", name="test")
    go, waits, done = threading.Event(), threading.Event(), threading.Event()
    planner = threading.get_ident()
    counts: list[int] = []

    def put() -> None:
        store.put(b"1", b"w")
        counts.append(store.lookup.locks.count)
        done.set()

    def hook() -> None:
        if threading.get_ident() != planner:
            waits.set()
            go.wait()
        elif store.writer.search(0).length == 7 and not go.is_set():
            go.set()
            done.wait()

    other = threading.Thread(target=put)
    number = 0
    try:
        while True:
            if number == 4500:
                pool.endpoint.hook = hook
                other.start()
                waits.wait()
            store.insert(b"%d" % number, b"v")
            number += 1
    except limpet.StoreFull:
        assert go.is_set()
    finally:
        go.set()
        other.join()
    assert counts == [2]
    store.check()


@pytest.mark.exhaustive("waits for what hangs")
def test_a_damaged_row_is_an_error_and_no_endless_wait(pools: Any) -> None:
    pool = pools(nodes=1)
    store = pool.store("rcuckoo", name="test", capacity=200)
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"
    pool.endpoint.store(store.lookup.rows.address(store.found.first), 12345)
    for work in (
        lambda: store.get(b"k"),
        lambda: store.put(b"k", b"w"),
        lambda: store.put(b"k", b"w" * 100),
        lambda: store.delete(b"k"),
        store.check,
    ):
        with pytest.raises(limpet.StoreCorrupt, match="is not whole"):
            work()
    store.put(b"another", b"w" * 100)
    assert store.get(b"another") == b"w" * 100


def test_an_iterator_does_not_say_damaged_of_a_row_whose_writer_went_on(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped in the midst of the row for so long that the iterator lost patience, and ends
    just before the iterator looks at the lock."""
    monkeypatch.setattr("limpet.stores.rcuckoo.check.LOOKS_MAX", 3)
    clients = Clients(pools, 2)
    writer, reader = clients.puppets
    key = clients.key(4)
    assert not writer.begin(lambda: writer.store.update(key, b"new"), clients.writes(2))
    assert not reader.begin(lambda: list(reader.store), clients.looks())
    assert writer.go()
    assert reader.go()
    assert reader.result == [key]
    clients.sound()


def test_a_key_that_is_twice_in_a_row_is_found_by_check(pools: Any) -> None:
    store = pools(nodes=1).store("rcuckoo", name="test", capacity=200)
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"
    store.check()
    rows = store.lookup.rows
    number = store.found.first
    row, entry = rows.read(number), Entry(store.parameters)
    entry.copy(row, 0)
    rows.post_entry(row, number, 5, row.sequence() + 2, entry)
    with pytest.raises(limpet.StoreCorrupt, match="twice"):
        store.check()


def test_a_survey_changes_nothing_outside_of_operations(pools: Any) -> None:
    """Another thread may be in the midst of one; where rows and locks are is what it goes by."""
    store = pools(nodes=2).store("rcuckoo", name="test", capacity=200)
    store.put(b"k", b"v")
    store.get(b"k")
    before = (
        store.lookup.rows.base,
        store.lookup.locks.base,
        store.lookup.locks.busy,
        store.found.table,
    )
    checker = RcuckooCheck(store)
    for table in range(2):
        checker._changed(table, [0] * store.lookup.row_count)
        checker._locked(table, 1)
        checker._wait(table, 1, 7)
    assert before == (
        store.lookup.rows.base,
        store.lookup.locks.base,
        store.lookup.locks.busy,
        store.found.table,
    )


def test_a_cache_of_more_rows_than_there_are(pools: Any) -> None:
    store = pools(nodes=1).store("rcuckoo", name="test", capacity=100, cache_rows=5000)
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"


@pytest.mark.exhaustive("waits for what hangs")
@pytest.mark.parametrize("holder", [7, 3 << INCARNATION_BITS | 5, (1 << 64) - 1])
def test_writers_say_that_a_lock_is_of_nobody(pools: Any, holder: int) -> None:
    store = pools().store("rcuckoo", name="test", capacity=1)
    store.put(b"key", b"value")
    word = store.lookup.tables[0] + store.lookup.locks_at
    store.endpoint.store(word, holder)
    with pytest.raises(limpet.StoreCorrupt, match="no client says"):
        store.put(b"key", b"other")
    assert store.get(b"key") == b"value"


def test_a_client_waits_for_its_own_dead_incarnation(pools: Any) -> None:
    """Its slot has a new client, whose id is another one."""
    clients = Clients(pools, 1)
    key = clients.key(3)
    clients.die(clients.holds(), lambda store: store.update(key, b"new"))
    dead = clients.dead()
    clients.pool.recover()
    successor = clients.newcomer()
    assert successor.pool.client_id >> INCARNATION_BITS in dead
    successor.store.update(key, b"newer")
    assert clients.store.get(key) == b"newer"
    clients.sound()


@pytest.mark.parametrize("state", [1 << 8 | 15, 1 << 8 | 1, 1 << 8 | 15 << 4])
def test_a_damaged_journal_is_an_error(pools: Any, state: int) -> None:
    """Too many locks; one that is outside of the table; too many rows of a path."""
    store = pools().store("rcuckoo", name="test", capacity=1)
    store.put(b"key", b"value")
    journal = store.lookup.tables[0] + 3 * store.lookup.journal_size
    store.pool.endpoint.store(SLOTS_USED, 4)
    store.endpoint.store(journal + STATE, state)
    holder = 3 << INCARNATION_BITS | 1
    store.endpoint.store(store.lookup.tables[0] + store.lookup.locks_at, holder)
    with pytest.raises(limpet.StoreCorrupt, match="journal"):
        store.put(b"key", b"other")
    assert store.get(b"key") == b"value"


def test_a_client_with_a_damaged_journal_is_recovered(pools: Any) -> None:
    clients = Clients(pools, 0)
    store, key = clients.store, clients.key(3)
    clients.die(clients.holds(), lambda remotely_fenced: remotely_fenced.update(key, b"new"))
    repair = Repair(store, clients.table)
    journal = repair.journal_of(store.endpoint.load(clients.locks[3]))
    store.endpoint.store(journal + STATE, 1 << 8 | 15)
    assert len(clients.pool.recover()["clients"]) == 1
    assert clients.pool.audit()["held"] == 0
    with pytest.raises(limpet.StoreCorrupt, match="journal"):
        store.update(key, b"newer")


def test_the_word_of_locks_says_in_which_table_a_thread_waits(pools: Any) -> None:
    """Another thread had a key of another table meanwhile: damage was seen where none was."""
    pool = pools(nodes=2, fence="wait")
    store = pool.store("rcuckoo", name="test", capacity=200)
    store.put(b"k", b"v")
    table = store.found.table
    holder = Puppet(pools, pool.url, "rcuckoo")
    writes = verb_on("write_words", table, 2)
    assert not holder.begin(lambda: holder.store.update(b"k", b"new"), writes)
    store.client.enter()
    try:
        assert store._change_once(b"k", b"late", 0, PUT, 0, 0, None) == AGAIN
    finally:
        store.client.leave()
    store.found.table = 1 - table  # as an operation of another thread has it
    store.await_holder(LOOKS_MAX + 1, True)
    assert holder.go()
    assert store.get(b"k") == b"new"
    store.check()
