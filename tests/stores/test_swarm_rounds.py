"""Round trips of SWARM-KV's operations: alone, in conflict, and with wrong clocks.

And what it refuses: parameters that cannot be, clients that have no number as a writer, sizes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from kit.processes import gather
from kit.puppets import Puppet, ShiftedPool, verb_on
from kit.stores import sound

import limpet
from limpet.stores.swarm.register import area_of

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["test_round_trips_without_conflict"]
)

COMPILED = limpet.build == "compiled"

NODES = 7
IN_PLACE = 8192
"""Bytes of the largest value that is stored in place, too."""
AT_ONCE = 4096 - 32
"""Bytes of the largest value that is read from its buffer together with its length."""
GUESS_STALE = 3
"""WRITE; TRYLOCK; WRITE again. One more when the lock has a timestamp already."""
HOUR_US = 3_600_000_000


def warm(store: Any) -> Any:
    """Have memory at hand on every node, for registers and for buffers."""
    for number in range(24):
        for size in (1, 20, 120):
            store.put(b"warm-%d" % number, bytes(size))
            store.update(b"warm-%d" % number, bytes(size))
            store.delete(b"warm-%d" % number)
    return store


def round_trips(store: Any, work: Callable[[], object]) -> int:
    before = store.stats()["round_trips"]
    work()
    return int(store.stats()["round_trips"] - before)


def get_trips(store: Any, key: bytes, expected: bytes | None) -> int:
    """Round trips of a get, which must return this."""
    found = []
    trips = round_trips(store, lambda: found.append(store.get(key)))
    assert found == [expected]
    return trips


def update_trips(store: Any, key: bytes, value: bytes) -> int:
    return round_trips(store, lambda: store.update(key, value))


ALL_REPLICAS = pytest.mark.parametrize("replicas", [1, 3, 5, 7])
REPLICAS = pytest.mark.parametrize("replicas", [1, 3, 5, 7] if COMPILED else [1, 3])


# ---- without conflict ----------------------------------------------------------------------------


@ALL_REPLICAS
def test_round_trips_without_conflict(pools: Any, replicas: int) -> None:
    """1 where the place is remembered. An insert without backups of the slot decides by one CAS."""
    pool = pools(nodes=NODES, node_size="4MiB")  # so that memory is not short
    # so few subtables that both handles know those of all keys
    store = warm(pool.store("swarm", name="test", capacity=300, groups=8, replicas=replicas))
    cold = warm(pools.again(pool).store("swarm", name="test"))

    assert get_trips(store, b"k", None) == 1  # both buckets
    insert = round_trips(store, lambda: store.insert(b"k", b"1"))
    assert insert == (4 if replicas > 1 else 3)
    assert get_trips(store, b"k", b"1") == 1  # an insert remembers
    assert update_trips(store, b"k", b"2") == 1
    assert update_trips(store, b"k", b"3") == 1
    assert round_trips(store, lambda: store.put(b"k", b"4")) == 1
    assert get_trips(store, b"k", b"4") == 1

    assert get_trips(cold, b"k", b"4") == 2
    assert get_trips(cold, b"k", b"4") == 1
    assert update_trips(cold, b"k", b"5") == 1  # a get has read its row, too
    for value in (b"6", b"7", b"8"):  # both of its pointers in turn, and the other's
        assert update_trips(cold, b"k", value) == 1
        assert update_trips(store, b"k", value * 2) == 1
        assert get_trips(cold, b"k", value * 2) == 1

    store.insert(b"l", b"1")
    assert update_trips(cold, b"l", b"2") == 3  # both buckets; the register; WRITE
    assert update_trips(cold, b"l", b"3") == 1
    store.insert(b"m", b"1")
    assert round_trips(cold, lambda: cold.put(b"m", b"2")) == 3
    assert store.stats()["cas_lost"] == cold.stats()["cas_lost"] == 0
    assert store.stats()["retries"] == cold.stats()["retries"] == 0
    sound(store)


@pytest.mark.parametrize("guess", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_each_mechanism_saves_a_round_trip(pools: Any, guess: bool, in_place: bool) -> None:
    """Safe-Guess one of an update, In-n-Out one of a get."""
    store = warm(
        pools(nodes=3).store("swarm", name="test", capacity=300, guess=guess, in_place=in_place)
    )
    store.insert(b"k", b"0")
    for number in range(5):
        assert update_trips(store, b"k", b"%d" % number) == (1 if guess else 2)
        assert get_trips(store, b"k", b"%d" % number) == (1 if in_place else 2)
    sound(store)


@ALL_REPLICAS
def test_round_trips_of_a_delete(pools: Any, replicas: int) -> None:
    """Both buckets, the register, the tombstone, and 3 for the slot; buckets and register are one
    where the place is remembered.

    Without backups: both buckets, the register, the tombstone; the log entry, the slot.
    """
    pool = pools(nodes=NODES)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    cold = warm(pools.again(pool).store("swarm", name="test"))
    for client, looks in ((store, 0), (cold, 1)):
        store.put(b"k", b"1")
        store.update(b"k", b"2")
        deleted = round_trips(client, lambda c=client: c.delete(b"k"))  # type: ignore[misc]
        assert deleted == looks + (5 if replicas > 1 else 4)
        assert get_trips(cold, b"k", None) <= 2
    sound(store)


@ALL_REPLICAS
def test_round_trips_of_what_is_refused(pools: Any, replicas: int) -> None:
    pool = pools(nodes=NODES)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    cold = warm(pools.again(pool).store("swarm", name="test"))
    store.insert(b"k", b"1")

    def refused(work: Callable[[], object]) -> None:
        with pytest.raises(KeyError):
            work()

    # the buckets, and a new register in vain; the register that is there
    assert round_trips(cold, lambda: refused(lambda: cold.insert(b"k", b"2"))) == 2
    assert round_trips(cold, lambda: refused(lambda: cold.insert(b"k", b"2"))) == 1
    assert round_trips(cold, lambda: refused(lambda: cold.update(b"j", b"2"))) == 1
    assert round_trips(cold, lambda: refused(lambda: cold.delete(b"j"))) == 1
    assert get_trips(cold, b"k", b"1") == 1
    sound(store)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_place_that_is_out_of_date_costs_one_round_trip_more(pools: Any, replicas: int) -> None:
    pool = pools(nodes=3)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    other = warm(pools.again(pool).store("swarm", name="test"))

    def renew(value: bytes) -> None:
        """The key gets another register than the one whose place the other client remembers."""
        store.put(b"k", b"before")
        other.update(b"k", b"known")
        store.delete(b"k")
        if value:
            store.insert(b"k", value)

    renew(b"")
    assert get_trips(other, b"k", None) == 1 + 1
    assert get_trips(other, b"k", None) == 1
    renew(b"new")
    assert get_trips(other, b"k", b"new") == 1 + 2
    assert get_trips(other, b"k", b"new") == 1
    renew(b"new")
    assert update_trips(other, b"k", b"newer") == 1 + 3
    assert update_trips(other, b"k", b"newest") == 1
    assert get_trips(store, b"k", b"newest") <= 2
    sound(store)


def test_without_a_cache_nothing_is_remembered(pools: Any) -> None:
    store = warm(pools(nodes=3).store("swarm", name="test", capacity=300, cache_size=0))
    store.put(b"k", b"1")
    for value in (b"2", b"3"):
        assert update_trips(store, b"k", value) == 3
        assert get_trips(store, b"k", value) == 2


def test_a_small_cache_remembers_some(pools: Any) -> None:
    store = warm(pools(nodes=3).store("swarm", name="test", capacity=300, cache_size=4))
    keys = [b"%d" % number for number in range(16)]
    for key in keys:
        store.put(key, key)
    trips = [get_trips(store, key, key) for key in keys]
    assert set(trips) == {1, 2}
    assert trips.count(2) >= len(keys) - 4
    assert store.cache.count == 4


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 64, 65, 4000, IN_PLACE - 1, IN_PLACE])
def test_first_value_of_a_key_is_in_place(pools: Any, replicas: int, size: int) -> None:
    pool = pools(nodes=3)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    cold = warm(pools.again(pool).store("swarm", name="test"))
    first, second = os.urandom(size), os.urandom(size)
    store.insert(b"k", first)
    assert get_trips(cold, b"k", first) == 2
    assert get_trips(cold, b"k", first) == 1
    cold.update(b"k", second)
    assert get_trips(cold, b"k", second) == get_trips(cold, b"k", second) == 1
    assert get_trips(store, b"k", second) == 1


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("size", [IN_PLACE + 1, 9000, 200_000])
def test_big_values_are_only_out_of_place(pools: Any, replicas: int, size: int) -> None:
    """The register, which has the length and names the buffer; the value."""
    pool = pools(nodes=3, node_size="8MiB")
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    cold = warm(pools.again(pool).store("swarm", name="test"))
    first, second = os.urandom(size), os.urandom(size)
    store.insert(b"k", first)
    assert get_trips(cold, b"k", first) == 3
    assert get_trips(cold, b"k", first) == 2
    cold.update(b"k", second)
    assert get_trips(cold, b"k", second) == 2
    assert get_trips(store, b"k", second) == 2
    sound(store)


@pytest.mark.parametrize("replicas", [1, 3])
def test_values_grow_and_shrink(pools: Any, replicas: int) -> None:
    """The room in place is that of the first value; greater ones are read from their buffers. A
    handle reads as much of the room as the value took that it saw last."""
    pool = pools(nodes=3)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    other = warm(pools.again(pool).store("swarm", name="test"))
    store.insert(b"k", b"small")
    other.get(b"k")
    sizes = [10, 64, 1000, 0, AT_ONCE, AT_ONCE + 1, IN_PLACE, IN_PLACE + 1, 20, 100_000, 1, 300]
    for size in sizes:
        value = os.urandom(size)
        store.update(b"k", value)
        reads = 1 if size <= 64 else 2
        assert get_trips(store, b"k", value) == reads, size
        assert get_trips(other, b"k", value) <= reads + 1, size
        assert get_trips(other, b"k", value) == reads, size
    sound(store)


@pytest.mark.parametrize("replicas", [1, 3, 5] if COMPILED else [3])
def test_keys_and_values_of_every_size(pools: Any, replicas: int) -> None:
    pool = pools(nodes=5, node_size="32MiB")
    store = pool.store("swarm", name="test", capacity=100, replicas=replicas)
    other = pools.again(pool).store("swarm", name="test")
    values = [bytes([size % 251]) * size for size in (0, 1, 7, 8, 4096, 1 << 20)]
    for key in (b"", b"k", b"k" * 8, bytes(40_000)):
        for value in values:
            store.put(key, value)
            assert store.get(key) == other.get(key) == value
        store.delete(key)
        assert store.get(key) is other.get(key) is None
        for value in values:
            store.insert(key, value)
            assert other.get(key) == value
            store.delete(key)
    assert len(store) == 0
    sound(store)


def test_what_is_too_large_is_refused(pools: Any) -> None:
    store = pools(nodes=3).store("swarm", name="test", capacity=100)
    store.put(b"k", b"v")
    most = store.logged.value_max - 32
    for write in (store.put, store.update):
        with pytest.raises(limpet.ValueTooLarge, match=str(most + 32)):
            write(b"k", bytes(most + 1))
    with pytest.raises(limpet.ValueTooLarge):
        store.insert(b"j", bytes(most + 1))
    with pytest.raises(limpet.KeyTooLarge):
        store.put(bytes(65_536), b"v")
    assert dict(store.items()) == {b"k": b"v"}
    sound(store)


# ---- conflicts -----------------------------------------------------------------------------------


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("replicas", [1, 3, 5])
@pytest.mark.parametrize("buffers", [1, 2, 8])
def test_a_shared_metadata_word_costs_round_trips(pools: Any, replicas: int, buffers: int) -> None:
    """With fewer words than writers, a MAX that follows another writer's expects what is no more.

    Then it is repeated, at once on all replicas. A get shows what is there. With a word for each
    there is nothing to repeat.
    """
    pool = pools(nodes=NODES)
    store = warm(
        pool.store(
            "swarm", name="test", capacity=300, replicas=replicas, writers=8, buffers=buffers
        )
    )
    other = warm(pools.again(pool).store("swarm", name="test"))
    store.put(b"k", b"0")
    store.update(b"k", b"1")
    other.update(b"k", b"2")
    for number in range(4):
        for client in (store, other):
            trips = update_trips(client, b"k", b"%d" % number)
            # the other one's last update is unknown to `store`, and `other` gets each
            assert trips == (2 if buffers == 1 and client is store else 1)
            assert get_trips(other, b"k", b"%d" % number) == 1
    # no client has written meanwhile
    assert update_trips(other, b"k", b"end") == 1
    assert get_trips(store, b"k", b"end") == 1
    assert (store.stats()["cas_lost"] > 0) == (buffers == 1)
    sound(store)


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["1"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_update_beside_a_write_that_stands_still(pools: Any, replicas: int) -> None:
    """At each of its CASes in turn, in a row whose last value others have given up already."""
    for number in itertools.count(1):
        pool = pools(nodes=NODES)
        store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
        writer = Puppet(pools, pool.url, "swarm")
        warm(writer.store)
        store.put(b"k", b"old")
        for value in (b"1", b"2", b"3"):
            writer.store.update(b"k", value)
            store.update(b"k", value)
        writer.store.cache.forget()
        update = functools.partial(writer.store.update, b"k", b"new")
        ended = writer.begin(update, verb_on("cas", None, number))
        store.update(b"k", b"meanwhile")
        assert ended or writer.go()
        assert store.get(b"k") in (b"new", b"meanwhile")
        sound(store)
        if ended:
            break
        pools.destroy()
    assert number > 2


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["1", "3"])
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_get_beside_a_write_that_stands_still(pools: Any, replicas: int) -> None:
    """At each of its CASes in turn. A reader makes it known, and confirms it, once for all."""
    majority = replicas // 2 + 1
    for number in itertools.count(1):
        pool = pools(nodes=NODES)
        store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
        writer = Puppet(pools, pool.url, "swarm")
        warm(writer.store)
        store.put(b"k", b"old")
        for value in (b"1", b"2"):
            writer.store.update(b"k", value)
            store.update(b"k", value)
        update = functools.partial(writer.store.update, b"k", b"new")
        if writer.begin(update, verb_on("cas", None, number)):
            break
        # at each replica the word in M; then VERIFIED at each
        there = number - 1
        value = b"new" if there else b"2"
        again = 1  # a get without a pin, which meets the change and begins again
        first = get_trips(store, b"k", value)
        if there == 0:
            assert first == 1
        elif there < majority:
            # read; our row; pointer, value, copy; value; read, TRYLOCK
            assert first == again + 8
        elif there == majority:
            assert first == again + 5  # read, pointer, value; read, TRYLOCK
        else:
            assert first <= again + 3  # VERIFIED, and perhaps not in place yet
        assert get_trips(store, b"k", value) == 1
        assert update_trips(store, b"k", b"other") == 1  # the second get has read the row
        assert writer.go()
        # The writer may have put its own value in place: a get without a pin begins again.
        assert get_trips(store, b"k", b"other") <= 4
        assert get_trips(store, b"k", b"other") == 1
        sound(store)
        pools.destroy()
    assert number > 2 * majority


@pytest.mark.parametrize("operation", ["put", "update"])
@pytest.mark.parametrize("knows", [True, False])
def test_a_write_beside_a_delete_that_stands_still(pools: Any, knows: bool, operation: str) -> None:
    """Its tombstone is at a majority, and the index still has the key: the next client unmaps."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=100)
    deleter = Puppet(pools, pool.url, "swarm")
    for client in (deleter.store, store, store) if knows else (store, deleter.store):
        client.put(b"k", b"old")
    other = store if knows else pools.again(pool).store("swarm", name="test")
    assert not deleter.begin(functools.partial(deleter.store.delete, b"k"), verb_on("cas", None, 5))
    before = other.stats()["round_trips"]
    if operation == "put":
        other.put(b"k", b"new")
    else:
        with pytest.raises(KeyError):
            other.update(b"k", b"new")
    assert other.stats()["round_trips"] - before < 20
    value = b"new" if operation == "put" else None
    assert store.get(b"k") == other.get(b"k") == value
    assert deleter.go()
    assert deleter.result is None
    assert store.get(b"k") == value
    sound(store)


def test_two_handles_of_one_client_take_turns(pools: Any) -> None:
    """They have one row between them; what one of them remembers of it, the other has changed."""
    pool = pools(nodes=3)
    handles = [pool.store("swarm", name="test", capacity=100) for _ in range(2)]
    handles[0].put(b"k", b"0")
    for order in itertools.product(handles, repeat=5):
        for number, handle in enumerate(order):
            handle.put(b"k", b"%d" % number)
            assert [other.get(b"k") for other in handles] == [b"%d" % number] * 2
    sound(handles[0])


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_client_that_has_only_read_a_key_knows_its_row(pools: Any, replicas: int) -> None:
    """If it has a writer number; a fork knows its own row, not that of its parent."""
    pool = pools(nodes=NODES)
    store = pool.store("swarm", name="test", capacity=300, replicas=replicas)
    for value in (b"0", b"1", b"2"):
        store.put(b"k", value)

    def update() -> tuple[int, int]:
        store.put(b"j", b"")
        assert store.get(b"k")
        before = store.stats()
        store.update(b"k", b"of the child")
        after = store.stats()
        return after["round_trips"] - before["round_trips"], after["cas_lost"] - before["cas_lost"]

    cold = pools.again(pool).store("swarm", name="test")
    cold.put(b"j", b"")
    assert cold.get(b"k") == b"2"
    assert update_trips(cold, b"k", b"3") == 1
    assert cold.stats()["cas_lost"] == 0
    for _ in range(2):
        assert gather(update) == [(1, 0)]
        store.recover()


@pytest.mark.parametrize("read", [True, False])
def test_an_update_through_a_place_that_is_anothers_by_now(pools: Any, read: bool) -> None:
    """The key is deleted and its memory cut into other objects, in one of which is its M."""
    met = [
        _late_update(pools, read, fill, size) for fill in (2, 4, 9) for size in (300, 1000, 2500)
    ]
    assert True in met


def _late_update(pools: Any, read: bool, fill: int, size: int) -> bool:
    """Whether a client came whose pointer was empty still, and whose word of M was another's."""
    pool = pools(nodes=1, node_size="4MiB", block_size="16KiB")
    store = pool.store("swarm", name="test", capacity=300, replicas=1)
    other = pools.again(pool)
    keys = [b"f%d" % number for number in range(fill)] + [b"k"]
    for key in keys:
        other.store("swarm", name="test").insert(key, b"v")
    store.put(b"another" if read else b"k", b"v")
    assert store.get(b"k") == b"v"
    addresses = store_words(store, b"k")
    ident, tuples = (pool.endpoint.load(at) for at in addresses)
    for key in keys:
        other.store("swarm", name="test").delete(key)
    other.close()
    stranger = pools.again(pool).store("race", name="another", capacity=300)
    for number in range(250):
        stranger.put(b"%d" % number, bytes(size))
        pointer, found = (pool.endpoint.load(at) for at in addresses)
        if met := pointer == ident and found != tuples:
            break
    with pytest.raises(KeyError):
        store.update(b"k", b"too late")
    assert pool.endpoint.load(addresses[1]) == found
    assert set(stranger.get_many([b"%d" % n for n in range(number + 1)])) == {bytes(size)}
    sound(store)
    pools.destroy()
    return met


def store_words(store: Any, key: bytes) -> tuple[int, int]:
    """Addresses of our empty pointer and of our word of M in a key's only replica."""
    for reference in store.slots_taken():
        base = store.heap.replica(reference, 0) + area_of(len(key))
        if store.endpoint.read(base - 8, len(key)) == key:
            break
    ident = store.endpoint.load(base)
    writer = store.pool.numbers.number
    place = store.register.place
    assert store.register.recycling.visit(reference)
    pointers = [place.pointer(0, writer, side) for side in range(2)]
    return next(at for at in pointers if store.endpoint.load(at) == ident), base + 8 * (2 + writer)


def test_a_row_is_not_inherited_by_a_fork(pools: Any) -> None:
    """A forked client knows the places of its parent, and has a row of its own; and the buffers
    there of the one before."""
    store = pools(nodes=3).store("swarm", name="test", capacity=100)
    store.put(b"k", b"0")

    def update() -> dict[str, int]:
        store.put(b"another", b"of the child")
        before = store.stats()
        store.update(b"k", b"of the child")
        after = store.stats()
        return {name: after[name] - before[name] for name in ("writes", "cas_lost", "round_trips")}

    for number in range(3):
        trips = 2 if number else 3  # the first one has no memory at hand for a buffer
        assert gather(update) == [{"writes": 2, "cas_lost": 0, "round_trips": trips}]
        store.put(b"k", b"of the parent")
        store.recover()


@pytest.mark.either_build("every step of the same lines", but=["3"])
@pytest.mark.exhaustive("every step", quick=["3"])
@pytest.mark.parametrize("replicas", [3, 5])
def test_a_get_that_wrote_back_is_known_to_the_next_update(pools: Any, replicas: int) -> None:
    """It has put a copy into our row, whose other pointer the cache took for the empty one."""
    for number in range(3, 2 * replicas):
        pool = pools(nodes=NODES)
        store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
        writer = Puppet(pools, pool.url, "swarm")
        warm(writer.store)
        store.put(b"k", b"0")
        for turn in range(4):
            store.update(b"k", b"1")
            writer.store.update(b"k", b"2")
            update = functools.partial(writer.store.update, b"k", b"new")
            writer.begin(update, verb_on("cas", None, number))
            value = store.get(b"k")
            assert value in (b"2", b"new")
            assert store.get(b"k") == value
            for last in range(turn + 1):
                store.update(b"k", b"last %d" % last)
                assert store.get(b"k") == b"last %d" % last
            assert writer._at is None or writer.go()
        sound(store)
        pools.destroy()


# ---- clocks --------------------------------------------------------------------------------------


@pytest.mark.either_build("the same lines")
@pytest.mark.parametrize("behind_us", [1_000_000, HOUR_US, 1 << 47])
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_clock_that_is_behind_is_set_by_the_first_stale_guess(
    pools: Any, replicas: int, behind_us: int
) -> None:
    pool = pools(nodes=NODES)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    late_pool = pools.keep(ShiftedPool.open(pool.url))
    late_pool.endpoint.shift = -behind_us
    late = warm(late_pool.store("swarm", name="test"))
    store.put(b"k", b"0")
    store.update(b"k", b"1")

    assert get_trips(late, b"k", b"1") == 2
    assert late.stats()["retries"] == 0
    assert update_trips(late, b"k", b"2") == GUESS_STALE
    assert get_trips(store, b"k", b"2") == get_trips(late, b"k", b"2") == 1
    assert update_trips(late, b"k", b"3") == 1
    assert get_trips(store, b"k", b"3") == 1
    sound(store)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_clock_that_runs_ahead_costs_others_one_slow_update(pools: Any, replicas: int) -> None:
    pool = pools(nodes=3)
    store = warm(pool.store("swarm", name="test", capacity=300, replicas=replicas))
    other = warm(pools.again(pool).store("swarm", name="test"))
    for client in (store, other):
        client.put(b"k", b"0")
        client.update(b"k", b"1")
    for number in range(3):
        pool.numbers.clock.after(pool.numbers.clock.guess() + HOUR_US)
        ahead, slow, quick = (b"%d.%d" % (number, n) for n in range(3))
        assert update_trips(store, b"k", ahead) == 1
        assert get_trips(other, b"k", ahead) == 1
        assert update_trips(other, b"k", slow) == GUESS_STALE + (number > 0)
        assert get_trips(store, b"k", slow) == get_trips(other, b"k", slow) == 1
        assert update_trips(other, b"k", quick) == 1
        assert get_trips(store, b"k", quick) == 1
    assert update_trips(store, b"k", b"end") == 1
    assert get_trips(other, b"k", b"end") == 1
    sound(store)


def test_stale_guesses_of_two_clients_in_turn_are_right(pools: Any) -> None:
    """Each update's clock is behind that of the one before."""
    pool = pools(nodes=3)
    store = warm(pool.store("swarm", name="test", capacity=300))
    clients = [store]
    for number in range(1, 4):
        made = pools.keep(ShiftedPool.open(pool.url))
        made.endpoint.shift = -number * HOUR_US
        clients.append(made.store("swarm", name="test"))
    store.put(b"k", b"0")
    for number in range(40):
        client = clients[number % len(clients)]
        client.update(b"k", b"%d" % number)
        assert {c.get(b"k") for c in clients} == {b"%d" % number}
        if number == 20:
            pool.numbers.clock.after(pool.numbers.clock.guess() + HOUR_US)
    sound(store)


def clock_of(pool: Any) -> Any:
    """The timestamps of the writer number that the pool's client has; it may have to take one."""
    pool.numbers.take(8)
    return pool.numbers.clock


def test_timestamps_do_not_come_again_with_a_writer_number(pools: Any) -> None:
    """The next client that has it goes on above them, whatever its clock says."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=300)
    store.put(b"k", b"0")
    used = 0
    numbers = set()
    for number in range(6):
        made = pools.keep(ShiftedPool.open(pool.url))
        made.endpoint.shift = -number * HOUR_US
        clock = clock_of(made)
        numbers.add(made.numbers.number)
        client = made.store("swarm", name="test")
        made.client.enter()
        assert clock.guess() > used
        used = clock.after(clock.guess() + HOUR_US)
        made.client.leave()
        client.update(b"k", b"%d" % number)
        assert store.get(b"k") == client.get(b"k") == b"%d" % number
        made.close()
    assert numbers == {1}
    sound(store)


def test_timestamps_do_not_come_again_after_a_kill(pools: Any) -> None:
    """Also when it guessed hours ahead, and no client closed its slot."""
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=300)
    store.put(b"k", b"0")
    out, into = os.pipe()

    def guess_and_die() -> None:
        mine = limpet.open(pool.url)
        clock = clock_of(mine)
        mine.client.enter()
        clock.after(clock.guess() + HOUR_US)
        mine.client.leave()
        mine.store("swarm", name="test").update(b"k", b"of the dead")
        mine.client.enter()
        os.write(into, b"%d %d" % (mine.numbers.number, clock.guess()))
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError, match="-9"):
        gather(guess_and_die)
    number, last = map(int, os.read(out, 100).split())
    os.close(out)
    os.close(into)
    assert len(store.recover()["clients"]) == 1
    made = pools.again(pool)
    clock = clock_of(made)
    assert made.numbers.number == number
    client = made.store("swarm", name="test")
    made.client.enter()
    assert clock.guess() > last
    made.client.leave()
    assert client.get(b"k") == b"of the dead"
    client.update(b"k", b"of the heir")
    client.update(b"k", b"of the heir again")
    assert store.get(b"k") == client.get(b"k") == b"of the heir again"
    assert update_trips(client, b"k", b"at once") == 1
    sound(store)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("replicas", value) for value in (0, -1, 2, 4, 7, 8, 9, True, 3.0, "3")],
        *[("writers", value) for value in (0, -1, 65, True, 8.0, "8")],
        *[("buffers", value) for value in (0, -1, 9, 64, True, 1.0)],
        *[("cache_size", value) for value in (-1, 1 << 32, 1.5, True)],
        *[("capacity", value) for value in (0, -1, 1 << 40, 1.5, True)],
    ],
)
def test_what_cannot_be_is_refused(pools: Any, name: str, value: object) -> None:
    """Five nodes and eight writers."""
    pool = pools(nodes=5)
    with pytest.raises(limpet.ParameterError, match=name):
        pool.store("swarm", name="test", **{"capacity": 100, name: value})
    assert not pool.stores()
    pool.store("swarm", name="test", capacity=100).put(b"k", b"v")


@pytest.mark.parametrize(
    ("replicas", "writers", "buffers"), [(1, 1, 1), (3, 64, 64), (5, 64, 1), (3, 2, 1), (5, 5, 3)]
)
def test_what_can_be_is_used(pools: Any, replicas: int, writers: int, buffers: int) -> None:
    pool = pools(nodes=5, node_size="4MiB")
    chosen = {"replicas": replicas, "writers": writers, "buffers": buffers}
    store = pool.store("swarm", name="test", capacity=50, **chosen)
    for number in range(40):
        store.put(b"%d" % number, b"first")
        store.put(b"%d" % number, b"of %d" % number)
    assert dict(store.items()) == {b"%d" % n: b"of %d" % n for n in range(40)}
    found = store.stats()
    assert {name: found.get(name, value) for name, value in chosen.items()} == chosen
    assert store.losses_survived == replicas // 2
    sound(store)


def test_three_replicas_unless_there_are_fewer_nodes(pools: Any) -> None:
    for nodes, survived in ((1, 0), (2, 0), (3, 1), (5, 1)):
        store = pools(nodes=nodes).store("swarm", name="test", capacity=50)
        assert store.losses_survived == survived


@pytest.mark.skipif(not COMPILED, reason="the pure build opens no memory that is not coherent")
def test_memory_that_is_not_coherent_is_refused(pools: Any) -> None:
    pool = pools(nodes=3, coherent=False, coherent_bytes=1 << 20)
    with pytest.raises(limpet.ParameterError, match="coherent"):
        pool.store("swarm", name="test", capacity=50)
    assert not pool.stores()


def test_any_client_writes_and_none_that_only_reads_takes_a_number(pools: Any) -> None:
    """Trap S12: sixteen clients of a store with eight writers, by turns."""
    pool = pools(nodes=3, clients=32)
    store = pool.store("swarm", name="test", capacity=100, writers=8)
    store.put(b"k", b"v")
    readers = [pools.again(pool).store("swarm", name="test") for _ in range(9)]
    writers = [pools.again(pool).store("swarm", name="test") for _ in range(16)]
    assert {reader.get(b"k") for reader in readers} == {b"v"}
    for number, writer in enumerate([*writers, *writers]):
        key = b"%d" % number
        writer.insert(key, b"first")
        writer.update(b"k", key)
        writer.put(key, key)
        assert {reader.get(b"k") for reader in (*readers, store, writers[0])} == {key}
        writer.delete(key)
        assert {writer.pool.numbers.number for writer in writers} <= {-1, *range(8)}
    assert {reader.pool.numbers.number for reader in readers} == {-1}
    with pytest.raises(KeyError):
        readers[0].delete(b"missing")
    assert dict(readers[1].items()) == {b"k": b"31"}
    sound(store)


@pytest.mark.parametrize("number", [3, 4])
def test_a_client_without_a_number_reads_what_is_at_a_minority(pools: Any, number: int) -> None:
    """A writer stands still in the midst of its WRITE: at one replica of three."""
    pool = pools(nodes=3, clients=16)
    store = pool.store("swarm", name="test", capacity=100, writers=2)
    writer = Puppet(pools, pool.url, "swarm")
    ninth = pools.again(pool).store("swarm", name="test")
    store.put(b"k", b"old")
    writer.store.update(b"k", b"old")
    writer.begin(lambda: writer.store.update(b"k", b"new"), verb_on("cas", None, number))
    assert ninth.get(b"k") == b"old"
    assert writer.go()
    assert ninth.get(b"k") == b"new"


@pytest.mark.parametrize("short", [False, True])
def test_a_row_has_two_buffers_or_none_while_blocks_are_short(pools: Any, short: bool) -> None:
    """Of a key that is written on and on."""
    pool = pools(nodes=3, node_size="1MiB")
    store = pool.store("swarm", name="test", capacity=20)
    store.put(b"k", b"0")
    if short:
        others = pool.store("fusee", name="others", capacity=20, replicas=3)
        with contextlib.suppress(limpet.StoreFull):
            for number in itertools.count():
                others.insert(b"%d" % number, bytes(3000))
    for number in range(40):
        store.update(b"k", b"%d" % number)
    (reference,) = store.slots_taken()
    recycling = store.register.recycling
    assert recycling.visit(reference)
    assert len(recycling.buffers_named()) == (0 if short else 2)
    assert store.get(b"k") == b"39"
    store.check()
    assert pool.audit()["leaked"] == 0
