"""Counters in the stores' words that begin just below an end, and go over it.

Each module with a layout says which of its fields are narrower than a word, and what happens at
their end (stores/*/layout.py, words.py, records.py, locks.py).
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pytest

import limpet
from limpet.shm.clients.unique_ids import RANGE, TICKETS_MAX
from limpet.shm.clients.writer_numbers import number_address
from limpet.shm.endpoint.layout import TICKETS
from limpet.shm.endpoint.slots import CLOCK, INCARNATION_BITS
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant, vacant_word
from limpet.stores.race.layout import SPLIT, UNSET
from limpet.stores.rcuckoo.layout import SEQUENCE_SHIFT, STATE
from limpet.stores.transactions.layout import OBJECT_SIZE

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

DAY_US: Final = 24 * 3600 * 1_000_000
YEARS_30_US: Final = 32 * 366 * DAY_US
"""From 2025 to the end of 2056."""
TIMES: Final = 1 << 50
LOW: Final = 1 << 47
"""So many numbers of vacant words have the same bits above the size class."""
EVENTS: Final = 30 * 366 * 24 * 3600 * 10_000_000
"""Ten million a second, for thirty years."""
CLOCKED: Final = ("swarm", "rtx-sherman", "rtx-race")
NUMBERED: Final = ("fusee", "swarm", "rtx-sherman", "rtx-race")
SWARM: Final = [("swarm", {}), ("swarm", {"guess": False, "in_place": False, "buffers": 1})]


def made(pools: Any, kind: str, **parameters: Any) -> tuple[Any, Any]:
    """A pool and a store with some keys."""
    pool = pools(nodes=3 if kind in ("fusee", "swarm") else 1, node_size="4MiB")
    store = pool.store(kind, name="test", capacity=200, **parameters)
    for number in range(20):
        store.put(b"there%d" % number, b"v%d" % number)
    return pool, store


def set_clock(pool: Any, kind: str, time: int) -> Any:
    """The clock of this client's writes. Its next timestamp is the one after `time`, as no clock is
    as far."""
    clock, at = pool.clock, pool.client.slot + CLOCK
    if kind == "swarm":
        pool.numbers.take(1)
        clock, at = pool.numbers.clock, number_address(0) + 8
    pool.endpoint.store(at, time)
    clock.begin(at)
    return clock


def work(store: Any, count: int = 10) -> None:
    """Write, replace and delete keys."""
    for number in range(count):
        key = b"key%d" % number
        store.insert(key, b"one")
        store.update(key, b"two" * 30)
        assert store.get(key) == b"two" * 30
        store.delete(key)
        assert store.get(key) is None
        store.put(key, b"three")
        store.delete(key)


def assert_whole(pool: Any, store: Any) -> None:
    for number in range(20):
        assert store.get(b"there%d" % number) == b"v%d" % number
    store.check()
    assert pool.audit()["leaked"] == 0


# ---- numbers of vacant words ---------------------------------------------------------------------


def test_numbers_of_vacant_words_last_for_thirty_years() -> None:
    assert EVENTS < TICKETS_MAX
    tickets = [0, 1, LOW - 2, LOW - 1, LOW, LOW + 1, TICKETS_MAX - 1]
    words = [vacant_word(ticket) for ticket in tickets]
    assert len(set(words)) == len(words)
    for word in words:
        assert word < 1 << 64
        assert is_vacant(word)
        assert word & 1 == 0
        assert word not in (SPLIT, UNSET)


@pytest.mark.parametrize("end", [1 << 46, LOW, TICKETS_MAX - 4 * RANGE])
@pytest.mark.parametrize("kind", NUMBERED)
def test_stores_go_on_where_the_numbers_of_vacant_words_grow_by_a_bit(
    pools: Any, kind: str, end: int
) -> None:
    pool, store = made(pools, kind)
    pool.endpoint.store(TICKETS, end - 30)
    other = pools.again(pool).store(kind, name="test")
    for each in (store, other, store):
        work(each, 20)
    assert_whole(pool, store)
    assert_whole(pool, other)


@pytest.mark.parametrize("kind", ["fusee", "swarm", "rtx-race"])
def test_where_no_number_is_left_nothing_is_deleted_and_all_can_be_read(
    pools: Any, kind: str
) -> None:
    pool, store = made(pools, kind)
    pool.endpoint.store(TICKETS, TICKETS_MAX - RANGE)
    with pytest.raises(limpet.PoolCorrupt, match="numbers of vacant slots"):
        work(store, RANGE)
    for _ in range(2):
        with pytest.raises(limpet.PoolCorrupt, match="numbers of vacant slots"):
            store.delete(b"there0")
    store.update(b"there0", b"again")
    store.update(b"there0", b"v0")
    assert_whole(pool, store)


def vacated(store: Any) -> list[int]:
    """The pointers to nothing of a tree's objects."""
    raw = store.endpoint.read(int(store.trees.roots[0]), OBJECT_SIZE * store.parameters.objects)
    words = np.frombuffer(raw, dtype="<u8")[POINTER // 8 :: OBJECT_SIZE // 8].tolist()
    return [word for word in words if word and is_vacant(word)]


def test_pointers_of_nodes_that_are_given_up_never_come_again(pools: Any) -> None:
    """The same is done twice, the second time 2^44 us later, by a clock whose time has 50 bits."""
    pool = pools(node_size="8MiB")
    found: list[list[int]] = []
    for since in (0, 1 << 44):
        store = pool.store(
            "rtx-sherman",
            name=f"at{since}",
            capacity=300,
            key_size=20,
            value_size=40,
            node_size=384,
        )
        set_clock(pool, store.kind, (1 << 48) + since)
        for number in range(60):
            store.put(b"%03d" % number, b"v" * 40)
        for number in range(60):
            store.delete(b"%03d" % number)
        found.append(vacated(store))
        assert len(store) == 0
        store.check()
    assert found[0]
    assert not {*found[0]} & {*found[1]}


def slot_words(store: Any) -> list[int]:
    """The vacant words of all subtables."""
    found = []
    for reference in store.checker.linked_all()[1].tolist():
        raw = store.endpoint.read(reference & (1 << 48) - 16, store.parameters.subtable_size)
        words = np.frombuffer(raw, dtype="<u8").tolist()
        found += [word for word in words if word >> 48 & 0xFF == 0xFF and word & ~3 != 0xFF << 48]
    return found


def test_words_of_slots_that_are_vacated_never_come_again(pools: Any) -> None:
    """The same is done twice, the second time 2^42 us later, by a clock whose time has 50 bits."""
    pool = pools(node_size="4MiB")
    store = pool.store("rtx-race", name="test", capacity=100)
    found: list[list[int]] = []
    for since in (0, 1 << 42):
        set_clock(pool, store.kind, (1 << 48) + since)
        for number in range(20):
            store.insert(b"%d" % number, b"v")
        for number in range(20):
            store.delete(b"%d" % number)
        found.append(pool.exclusively(lambda: slot_words(store)))
    assert found[0]
    assert not {*found[0]} & {*found[1]}


# ---- times ---------------------------------------------------------------------------------------


def put_both(store: Any, tx: Any) -> None:
    tx.put(store, b"there1", b"v1")
    tx.put(store, b"there2", b"v2")


@pytest.mark.parametrize("kind", CLOCKED)
@pytest.mark.parametrize("time", [1 << 49, YEARS_30_US])
def test_stores_go_on_where_their_time_grows_by_a_bit(pools: Any, kind: str, time: int) -> None:
    pool, store = made(pools, kind)
    other = pools.again(pool).store(kind, name="test")
    clock = set_clock(pool, kind, time - 10)
    for each in (store, other, store):
        work(each)
        if each.transactional:
            for _ in range(40):  # each takes a log, and draws its time
                each.pool.transaction(functools.partial(put_both, each))
    assert clock.guess() > time
    assert_whole(pool, other)


@pytest.mark.parametrize(("kind", "parameters"), [*SWARM, ("rtx-sherman", {}), ("rtx-race", {})])
def test_at_the_end_of_time_writers_get_an_error_and_all_can_be_read(
    pools: Any, kind: str, parameters: dict[str, Any]
) -> None:
    pool, store = made(pools, kind, **parameters)
    other = pools.again(pool).store(kind, name="test")
    clock = set_clock(pool, kind, TIMES - (1 << 14) - 40)
    while clock.guess() < TIMES - 100:
        pass

    def write_all(tx: limpet.Transaction) -> None:
        for number in range(20):
            tx.put(store, b"there%d" % number, b"v%d" % number)

    def write(count: int) -> None:
        nonlocal written
        for _ in range(count):
            if store.transactional:
                pool.transaction(write_all)
            else:
                store.update(b"there1", b"%d" % written)
            written += 1

    written = 0
    with pytest.raises(limpet.ClientError, match="clock"):
        write(1000)
    before = written
    assert before >= 20
    for _ in range(2):
        with pytest.raises(limpet.ClientError, match="clock"):
            write(1)
    assert written == before
    last = b"v1" if store.transactional else b"%d" % (written - 1)
    for each in (store, other):
        assert each.get(b"there1") == last
        assert each.get(b"there2") == b"v2"
        each.check()
    assert pool.audit()["leaked"] == 0


# ---- rcuckoo -------------------------------------------------------------------------------------


def test_rcuckoo_goes_on_where_the_sequence_of_a_journal_begins_anew(pools: Any) -> None:
    pool, store = made(pools, "rcuckoo")
    other = pools.again(pool).store("rcuckoo", name="test")
    slot = pool.client.ident >> INCARNATION_BITS
    sequence = (1 << 64 - SEQUENCE_SHIFT) - 20
    journals = [table + slot * store.lookup.journal_size for table in store.lookup.tables]
    for journal in journals:
        pool.endpoint.store(journal + STATE, sequence << SEQUENCE_SHIFT)
    store.forget()  # so that it reads the states again
    work(store)
    work(other)
    work(store)
    for journal in journals:
        assert pool.endpoint.load(journal + STATE) >> SEQUENCE_SHIFT < sequence
    assert_whole(pool, store)
    assert_whole(pool, other)


def test_rcuckoo_finds_paths_where_the_number_of_its_searches_begins_anew(pools: Any) -> None:
    pool = pools()
    store = pool.store("rcuckoo", name="test", capacity=200)
    keys: list[bytes] = []

    def fill(count: int) -> None:
        while len(keys) < count:
            key = b"%d" % len(keys)
            store.insert(key, b"v")
            keys.append(key)

    fill(100)
    store.writer.search(store.found.table).searches = (1 << 32) - 3
    with pytest.raises(limpet.StoreFull):
        fill(1000)
    assert len(keys) > 200
    assert 2 < store.writer.search(store.found.table).searches < 1 << 31
    assert all(store.get(key) == b"v" for key in keys)
    store.check()
