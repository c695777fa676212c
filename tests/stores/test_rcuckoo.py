"""RCuckoo's parts: places of keys, search for paths, locks, journals, rows; and its errors."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections import Counter
from typing import Any

import pytest
from kit.cuckoo import RING, ROWS, Clients, Ring, places_of, some
from kit.processes import dies_at

import limpet
from limpet.fault.matrix.operations import OLD
from limpet.shm.endpoint.fabric import BUILD, hash64
from limpet.shm.endpoint.words import FREE
from limpet.stores.rcuckoo.layout import (
    COUNT_MASK,
    FOUND,
    LACKING,
    NO_PATH,
    PATH_MASK,
    PATH_SHIFT,
    SLOTS,
    STATE,
)
from limpet.stores.rcuckoo.rows import DependentHash
from limpet.stores.rcuckoo.search import PathSearch

NEW = b"new"
KEYS = 16_000 if BUILD == "compiled" else 2000

compiled_only = pytest.mark.skipif(
    BUILD != "compiled", reason="the pure build opens only memory that is coherent"
)


@pytest.fixture
def ring(pools: Any) -> Any:
    return pools().store("rcuckoo", name="test", **RING)


def hashes(count: int = KEYS) -> list[int]:
    return [hash64(b"%d" % number) for number in range(count)]


# ---- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("locality", [0, 1.01, 2.3, 16])
@pytest.mark.parametrize("rows", [2, 16, 1000])
def test_rows_of_a_key_are_two_an_odd_distance_apart(rows: int, locality: float) -> None:
    places = DependentHash(rows, locality)
    for hashed in hashes():
        places.place(hashed)
        first, second = places.first, places.second
        assert first < rows
        assert second < rows
        assert (second - first) % 2 == 1
        assert places.other(hashed, first) == second
        assert places.other(hashed, second) == first


@pytest.mark.parametrize("locality", [0, 2.3])
def test_first_and_second_rows_are_equally_likely(locality: float) -> None:
    places = DependentHash(16, locality)
    counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for hashed in hashes():
        places.place(hashed)
        counts[0][places.first] += 1
        counts[1][places.second] += 1
    mean = KEYS / 16
    for count in counts:
        assert all(abs(count[row] - mean) < 6 * mean**0.5 for row in range(16))


def test_locality_has_most_rows_close_together() -> None:
    places = DependentHash(1 << 20, 2.3)
    distances = []
    for hashed in hashes():
        places.place(hashed)
        distances.append((places.second - places.first) % (1 << 20))
    distances.sort()
    assert distances[len(distances) // 2] <= 7
    assert distances[-1] > 100


# ---- search --------------------------------------------------------------------------------------


def search_of(store: Any) -> Any:
    """The search of a store with one table; it is made when it is needed first."""
    if store.writer.searches[0] is None:
        store.writer.searches[0] = PathSearch(store.parameters, store.lookup.places)
    return store.writer.searches[0]


def contents(store: Any) -> list[list[bytes | None]]:
    """The keys of each row's entries, and in passing have the search know them all."""

    def look() -> list[list[bytes | None]]:
        rows, found = store.lookup.rows, []
        store.lookup.enter_table(store.lookup.tables[0])
        for row in range(store.parameters.rows):
            there = rows.read(row)
            search_of(store).cache_row(there, row)
            found.append([there.key(s) if there.size(s) else None for s in range(SLOTS)])
        return found

    return store.pool.exclusively(look)  # type: ignore[no-any-return]


def other(store: Any, key: bytes, row: int) -> int:
    first, second = places_of(store, key)
    return second if row == first else first


def moves_needed(store: Any, table: list[list[bytes | None]], key: bytes, most: int) -> int:
    """The fewest moves that make room for a key, up to `most`; -1: it takes more."""
    there = set(places_of(store, key))
    for moves in range(most + 1):
        if any(None in table[row] for row in there):
            return moves
        there |= {other(store, k, row) for row in there for k in table[row] if k is not None}
    return -1


def test_search_finds_a_shortest_path_with_no_row_twice(pools: Any) -> None:
    store = pools().store("rcuckoo", name="test", capacity=400, key_size=15, value_size=0)
    with contextlib.suppress(limpet.StoreFull):
        for number in itertools.count():
            store.insert(b"%d" % number, b"")
    search, depth = search_of(store), store.parameters.depth
    lengths = Counter()
    for number in range(40):
        store.delete(b"%d" % number)
        table = contents(store)
        for wanted in range(20):
            key = b"wanted %d" % (20 * number + wanted)
            found = search.search(*places_of(store, key), None)
            fewest = moves_needed(store, table, key, depth)
            if fewest < 0:
                assert found == NO_PATH
                continue
            assert found == FOUND
            rows, slots = search.path_rows[: search.length], search.path_slots[: search.length]
            lengths[search.length - 1] += 1
            assert search.length == fewest + 1
            assert len(set(rows)) == search.length
            assert rows[0] in places_of(store, key)
            assert table[rows[-1]][slots[-1]] is None
            for step in range(search.length - 1):
                moved = table[rows[step]][slots[step]]
                assert moved is not None
                assert other(store, moved, rows[step]) == rows[step + 1]
    assert max(lengths) >= 3


@pytest.mark.parametrize("moves", [0, 1, 2, 3, 4, 5])
def test_search_goes_as_deep_as_the_store_says(pools: Any, moves: int) -> None:
    for depth in {max(1, moves - 1), max(1, moves)}:
        store = pools().store("rcuckoo", name="test", **RING, depth=depth)
        store.put(b"there", OLD)
        way = Ring(store, b"key", moves, there=b"there").way
        contents(store)
        search = search_of(store)
        outcome = search.search(*places_of(store, b"key"), None)
        assert outcome == (FOUND if depth >= moves else NO_PATH)
        if outcome == FOUND:
            assert list(search.path_rows[: search.length]) == way


def test_search_asks_for_rows_that_it_does_not_know(ring: Any) -> None:
    search = search_of(ring)
    first, second = places_of(ring, b"key")
    assert search.search(first, second, None) == LACKING
    assert list(search.unknown[: search.lacking]) == [first, second]


@pytest.mark.parametrize("cache_rows", [8, 16])
def test_what_a_search_remembers_may_be_out_of_date(pools: Any, cache_rows: int) -> None:
    pool = pools()
    store = pool.store("rcuckoo", name="test", **RING, cache_rows=cache_rows)
    store.put(b"there", OLD)
    made = Ring(store, b"key", 2, there=b"there")
    late = pools.again(pool).store("rcuckoo", name="test")
    contents(late)
    store.put(b"key", NEW)
    gone = made.keys[(made.way[-1] + 2) % ROWS][0]
    store.delete(gone)
    more = next(k for k in some(store, SLOTS + 2, made.first) if k not in store and k != b"key")
    late.put(more, NEW)
    assert late.get(more) == late.get(b"key") == NEW
    assert {late.get(key) for key in made.others if key != gone} == {OLD}
    store.check()


# ---- locks ---------------------------------------------------------------------------------------


def locks_of(store: Any, rows: list[int]) -> list[int]:
    """The numbers of the locks of these rows, in the order in which they are taken."""
    locks = store.lookup.locks
    store.lookup.enter_table(store.lookup.tables[0])
    locks.plan()
    for row in rows:
        locks.add(row)
    return [(locks.words[index] - locks.base) // 8 for index in range(locks.count)]


def test_locks_are_taken_in_ascending_order_by_as_few_messages_as_may_be(pools: Any) -> None:
    for message, expected in ((0, 1), (64, 2), (8, 3), (4, 5), (1, 5)):
        store = pools().store(
            "rcuckoo", name="test", capacity=700, rows_per_lock=1, locks_per_message=message,
            value_size=0,
        )  # fmt: skip
        assert locks_of(store, [70, 5, 63, 2, 64, 5]) == [2, 5, 63, 64, 70]
        locks = store.lookup.locks
        assert len({locks.message_of(index) for index in range(locks.count)}) == expected


def test_locks_that_there_are_not_are_shared_after_the_modulo(pools: Any) -> None:
    store = pools().store(
        "rcuckoo", name="test", capacity=1000, rows_per_lock=2, locks=64, value_size=0,
    )  # fmt: skip
    assert store.parameters.rows > 134
    # a set with aliases has each of them once, in the order of the locks and not of the rows
    assert locks_of(store, [132, 6, 130, 3]) == [1, 2, 3]


@pytest.mark.parametrize("message", [0, 1])
def test_who_is_refused_has_nothing_and_succeeds_later(pools: Any, message: int) -> None:
    clients = Clients(pools, 2, locks_per_message=message)
    holder, refused = clients.puppets
    held, needed = clients.key(4), clients.key(3)
    assert not holder.begin(lambda: holder.store.update(held, NEW), clients.holds())
    before = clients.locked()
    assert before == 1 << 4 | 1 << 5
    assert not refused.begin(lambda: refused.store.update(needed, NEW), clients.tries(2))
    assert clients.locked() == before
    assert holder.go()
    assert refused.go()
    assert clients.store.get(held) == clients.store.get(needed) == NEW
    clients.sound()


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_locks_of_the_dead_are_given_back_and_no_others(pools: Any, taken: int) -> None:
    """It died just before it took one of its two, or with both; others are a living one's."""
    clients = Clients(pools, 1)
    (living,) = clients.puppets
    key, held = clients.key(3), clients.key(8)
    assert not living.begin(lambda: living.store.update(held, NEW), clients.holds())
    clients.die(clients.takes(taken + 1), lambda store: store.update(key, NEW))
    mine = sum(1 << 3 + lock for lock in range(taken)) & 0b11 << 3
    assert clients.locked() == mine | 0b11 << 8
    assert clients.points() == (set(), {"locked"}, {"written"})[taken]
    clients.pool.recover()
    assert clients.locked() == 0b11 << 8
    assert clients.store.get(key) == (NEW if taken == 2 else OLD)
    clients.store.update(key, b"newer")
    assert living.go()
    clients.sound()


def test_two_journals_of_a_table_are_repaired_at_the_same_time(pools: Any) -> None:
    """A repairer that stands still keeps from others only what it repairs."""
    clients = Clients(pools, 2, fence="wait")
    repairer, late = clients.puppets
    one, two = clients.key(3), clients.key(8)
    clients.die(clients.holds(), lambda store: store.update(one, NEW))
    assert not repairer.begin(repairer.pool.recover, clients.takes())
    clients.remotely_fenced = late
    clients.die(clients.writes(2), lambda store: store.update(two, NEW))
    clients.store.update(two, b"newer")
    assert clients.locked() == 0b11 << 3
    assert repairer.go()
    assert clients.store.get(one) == OLD
    clients.sound()


# ---- journals ------------------------------------------------------------------------------------


def test_journal_says_what_its_client_does(pools: Any) -> None:
    """At each verb of an update; and it is never again in a state in which it was."""
    clients = Clients(pools, 1)
    (writer,) = clients.puppets
    key = clients.key(3)
    states: list[tuple[int, int]] = []

    def look(verb: str, address: int) -> bool:
        slot = writer.pool.client.ident >> 36
        at = clients.table + slot * clients.store.lookup.journal_size + STATE
        state = clients.pool.endpoint.load(at), clients.locked()
        if not states or states[-1] != state:
            states.append(state)
        return False

    for value in (NEW, OLD):
        assert writer.begin(lambda v=value: writer.store.update(key, v), look)  # type: ignore[misc]
    look("", 0)
    words = [word for word, _ in states]
    assert sorted(set(words)) == sorted(set(words), key=words.index)
    said = [(word & COUNT_MASK, word >> PATH_SHIFT & PATH_MASK, held) for word, held in states]
    first, both = 1 << 3, 0b11 << 3
    one = [(2, 0, 0), (2, 0, first), (2, 0, both), (2, 1, both), (2, 1, both - first), (2, 1, 0)]
    assert said == [(0, 0, 0), *one, *one]


# ---- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coherent", [True, pytest.param(False, marks=compiled_only)])
def test_row_of_zeros_is_whole_and_what_is_not_goes_unseen_nowhere(
    pools: Any, coherent: bool
) -> None:
    """An odd sequence; and any flipped bit, if memory is not hardware-coherent."""
    more = {} if coherent else {"coherent": False, "coherent_bytes": 1 << 20}
    ring = pools(**more).store("rcuckoo", name="test", **RING)
    row, empty = places_of(ring, b"key")
    value = os.urandom(32)
    ring.put(b"key", value)
    assert ring.get(b"key") == value

    def look() -> None:
        rows = ring.lookup.rows
        ring.lookup.enter_table(ring.lookup.tables[0])
        for number, sequence in ((empty, 0), (row, 2)):
            found = rows.read(number)
            assert rows.is_whole(found)
            assert found.sequence() == sequence
            words = found.image.words
            for index in range(1 if coherent else rows.size):
                for place in range(1 if coherent else 64):
                    words[index] ^= 1 << place
                    found.arrive(found.image, 0)
                    assert not rows.is_whole(found)
                    words[index] ^= 1 << place

    ring.pool.exclusively(look)


# ---- check() -------------------------------------------------------------------------------------


def test_check_leaves_out_what_a_client_that_stands_still_is_writing(pools: Any) -> None:
    """At each word-wise write of an insert that moves two entries, with its locks held."""
    clients = Clients(pools, 1, fence="wait")
    (still,) = clients.puppets
    clients.store.put(b"there", OLD)
    ring = Ring(clients.store, b"key", 2, there=b"there")
    met = 0
    while not still.begin(lambda: still.store.insert(b"key", NEW), clients.writes(met + 1)):
        clients.store.check()
        met += 1
        assert still.go()
        ring.put_back()
    assert met == 9  # of three rows, the header line, the entry and the sequence
    assert clients.store.get(b"key") == NEW
    clients.sound()


@pytest.mark.exhaustive("waits for what hangs")
def test_check_sees_a_row_that_nobody_is_writing_and_a_lock_of_nobodys(pools: Any) -> None:
    clients = Clients(pools, 0)
    store = clients.store
    key = clients.key(3)
    lock = clients.locks[9]
    for holder in (1 << 20, 1 << 36 | 77, store.client.ident):
        clients.pool.endpoint.store(lock, holder)
        with pytest.raises(limpet.StoreCorrupt, match="no client says that it has it"):
            store.check()
    clients.pool.endpoint.store(lock, 0)
    store.check()
    at = store.lookup.rows.address(3)
    word = clients.pool.endpoint.load(at)
    clients.pool.endpoint.store(at, word ^ 1)
    with pytest.raises(limpet.StoreCorrupt, match=r"row 3 .* is not whole"):
        store.check()
    with pytest.raises(limpet.StoreCorrupt, match=r"row 3 .* is not whole"):
        store.update(key, NEW)
    assert clients.locked() == 0
    clients.pool.endpoint.store(at, word)
    assert store.get(key) == OLD
    clients.sound()


# ---- errors --------------------------------------------------------------------------------------


def test_a_key_that_is_too_large_is_refused_by_the_size_that_the_store_has(ring: Any) -> None:
    ring.put(b"k" * 15, NEW)
    for write in (ring.put, ring.insert, ring.update):
        with pytest.raises(limpet.KeyTooLarge, match=r"16 bytes.*key_size=15"):
            write(b"k" * 16, NEW)
    assert ring.get(b"k" * 16) is None
    with pytest.raises(KeyError):
        ring.delete(b"k" * 16)
    assert list(ring) == [b"k" * 15]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rows": 17}, "rows must be an even number"),
        ({"locks": 0}, "locks"),
        ({"locks": 1 << 22}, "locks"),
        ({"locks_per_message": -1}, "locks_per_message"),
        ({"locality": 1}, "locality must be 0, or above 1"),
        ({"locality": 17.0}, "locality must be 0, or above 1"),
        ({"locality": True}, "locality must be a number"),
        ({"depth": 0}, "depth"),
        ({"depth": 7}, "depth"),
        ({"key_size": 256}, "key_size"),
        ({"value_size": 5000}, "value_size"),
        ({"rows_per_lock": 0}, "rows_per_lock"),
        ({"cache_rows": 0}, "cache_rows"),
        ({"capacity": 0}, "capacity"),
    ],
    ids=str,
)
def test_a_parameter_that_does_not_do_is_named(ring: Any, changed: Any, says: str) -> None:
    with pytest.raises(limpet.ParameterError, match=says):
        dataclasses.replace(ring.parameters, **changed)


def test_a_full_store_says_so_and_has_what_it_had(pools: Any) -> None:
    pool = pools()
    store = pool.store("rcuckoo", name="test", **RING)
    store.put(b"there", OLD)
    made = Ring(store, b"key", 0, there=b"there")
    store.put(b"key", OLD)
    assert len(store) == ROWS * SLOTS
    with pytest.raises(limpet.StoreFull, match=r"b'one more'.* 5 moves.*capacity 64"):
        store.put(b"one more", NEW)
    assert {store.get(key) for key in (*made.others, b"key")} == {OLD}
    assert store.get(b"one more") is None
    store.update(b"key", NEW)
    store.delete(made.others[0])
    store.put(b"one more", NEW)
    assert store.get(b"one more") == NEW
    store.check()
    assert pool.audit()["leaked"] == 0


# ---- memory --------------------------------------------------------------------------------------


def test_who_waits_for_a_lock_uses_up_no_memory(pools: Any) -> None:
    """It made an extent at each try, which no client could use again while the holder was
    pinned."""
    clients = Clients(pools, 2, value_size=0)
    holder, waiting = clients.puppets
    key, beside = clients.key(3), clients.key(3, number=1)
    assert not holder.begin(lambda: holder.store.update(key, NEW), clients.holds())
    looks = itertools.count(1)

    def often(verb: str, address: int) -> bool:
        return clients.looks()(verb, address) and next(looks) == 40

    def free_blocks() -> int:
        return int((clients.pool.blocks.words(0) >> 60 == FREE).sum())

    before = free_blocks()
    large = bytes(3000)
    assert not waiting.begin(lambda: waiting.store.update(beside, large), often)
    assert free_blocks() > before - 4
    assert holder.go()
    assert waiting.go()
    assert clients.store.get(beside) == large
    clients.sound()


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
def test_a_dead_owner_is_looked_for_as_soon_in_a_pool_that_has_had_many_clients(
    pools: Any,
) -> None:
    """And as soon in one that has many (traps C14, G24)."""
    pool = pools(clients=60)
    store = pool.store("rcuckoo", capacity=100)
    store.put(b"k", b"v")

    def attempts(fuse: int) -> int:
        assert dies_at(pool, fuse, lambda: store.update(b"k", b"w"))
        before = store.stats()["retries"]
        store.update(b"k", b"x")
        return int(store.stats()["retries"] - before)

    holding = next(fuse for fuse in range(1, 60) if attempts(fuse))
    few = attempts(holding)
    pools_of = [pools.again(pool) for _ in range(40)]
    assert attempts(holding) == few
    for handle in pools_of:
        handle.close()
    assert [attempts(holding) for _ in range(3)] == [few] * 3
