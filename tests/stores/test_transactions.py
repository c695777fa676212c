"""Promises of `pool.transaction`: all reads and writes of a function happen at one moment, or
none does."""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.processes import gather
from kit.stores import key_of, once, sound

import limpet
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import PROGRESS
from limpet.stores.rtx.race import SlotWriteSet
from limpet.stores.rtx.uses import PendingWrites

TREE: Final = "rtx-sherman"
HASH: Final = "rtx-race"
pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower",
    quick=["rtx-race", "rtx-race-*", "test_a_scan_has*", "test_write_skew*"],
)
KINDS: Final = (TREE, HASH)
COMPILED: Final = BUILD == "compiled"
START: Final = {b"a": b"1", b"b": b"2", b"c": b"3"}
MANY: Final = 200


class Sudden(Exception):
    """An exception of a user's function."""


@pytest.fixture
def pool(pools: Any) -> limpet.Pool:
    """A pool of two memory nodes."""
    return pools(nodes=2)  # type: ignore[no-any-return]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


only_trees = pytest.mark.parametrize("kind", [TREE], indirect=True)


@pytest.fixture
def store(pool: limpet.Pool, kind: str) -> Any:
    """A store with the pairs of START."""
    made = pool.store(kind, name="test")
    made.put_many(START)
    return made


@pytest.fixture
def other(pools: Any, pool: limpet.Pool, store: Any) -> Any:
    """The store, of another client."""
    return pools.again(pool).store(store.kind, name="test")


@pytest.fixture(params=itertools.product(KINDS, KINDS), ids="-and-".join)
def two(request: pytest.FixtureRequest, pool: limpet.Pool) -> list[Any]:
    """Two stores, of the same kind or not."""
    return [pool.store(kind, name=f"test {number}") for number, kind in enumerate(request.param)]


@pytest.fixture
def others(pools: Any, pool: limpet.Pool, two: list[Any]) -> list[Any]:
    """The two stores, of another client."""
    again = pools.again(pool)
    return [again.store(store.kind, name=store.name) for store in two]


# ---- what a function may do ---------------------------------------------------------------------


def test_it_returns_what_the_function_returned(pool: limpet.Pool, store: Any) -> None:
    assert pool.transaction(lambda tx: (tx.get(store, b"a"), tx.get(store, b"z"))) == (b"1", None)
    assert pool.transaction(lambda tx: None) is None
    assert pool.transaction(lambda tx: tx.get(store, b"z", "default")) == "default"


def test_writes_happen_when_it_returns_and_not_before(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    def work(tx: limpet.Transaction) -> None:
        tx.update(store, b"a", b"one")
        tx.insert(store, b"d", b"four")
        tx.put(store, b"e", b"five")
        tx.delete(store, b"b")
        assert dict(other.items()) == START

    pool.transaction(work)
    assert dict(other.items()) == {b"a": b"one", b"c": b"3", b"d": b"four", b"e": b"five"}
    sound(store)


def test_nothing_happens_when_the_function_raises(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction) -> None:
        tx.put(store, b"a", b"one")
        tx.delete(store, b"b")
        tx["x"] = b"y"
        raise Sudden

    with pytest.raises(Sudden):
        pool.transaction(work)
    assert dict(store.items()) == START
    assert not pool.transaction(lambda tx: "x" in tx)
    sound(store)


def test_a_function_cannot_commit(pool: limpet.Pool, store: Any) -> None:
    """Its writes until then stayed, whatever became of the rest."""

    def work(tx: Any) -> None:
        tx.put(store, b"a", b"other")
        tx.commit()

    with pytest.raises(TypeError, match="committed when its function returns"):
        pool.transaction(work)
    assert dict(store.items()) == START


def test_it_reads_its_own_writes(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction) -> list[Any]:
        tx.put(store, b"a", b"one")
        tx.delete(store, b"b")
        tx.insert(store, b"b", b"two")
        tx.delete(store, b"c")
        tx.put(store, b"d", b"")
        return [tx.get(store, key) for key in (b"a", b"b", b"c", b"d")]

    assert pool.transaction(work) == [b"one", b"two", None, b""]
    assert dict(store.items()) == {b"a": b"one", b"b": b"two", b"d": b""}


def test_what_was_put_and_deleted_again_was_never_there(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction) -> None:
        tx.insert(store, b"d", b"four")
        tx.delete(store, b"d")

    pool.transaction(work)
    assert dict(store.items()) == START
    sound(store)


def test_errors_are_those_of_a_store_and_may_be_handled(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction) -> None:
        with pytest.raises(limpet.KeyExists, match="there already"):
            tx.insert(store, b"a", b"one")
        with pytest.raises(KeyError):
            tx.update(store, b"z", b"26")
        with pytest.raises(KeyError):
            tx.delete(store, b"z")
        tx.delete(store, b"a")
        with pytest.raises(KeyError):
            tx.delete(store, b"a")
        tx.put(store, b"d", b"four")

    pool.transaction(work)
    assert dict(store.items()) == {b"b": b"2", b"c": b"3", b"d": b"four"}


def test_keys_and_values_that_are_too_large_are_refused_at_the_put(
    pool: limpet.Pool, store: Any
) -> None:
    reached = []

    def write(key: bytes, value: bytes) -> Callable[[limpet.Transaction], None]:
        def work(tx: limpet.Transaction) -> None:
            tx.put(store, b"a", b"one")
            reached.append(key)
            tx.put(store, key, value)
            reached.clear()

        return work

    longest = {TREE: 64, HASH: 65_535}[store.kind]
    with pytest.raises(limpet.KeyTooLarge, match=f"{longest + 1} bytes"):
        pool.transaction(write(bytes(longest + 1), b""))
    with pytest.raises(limpet.ValueTooLarge):
        pool.transaction(write(b"b", bytes(4 << 20)))
    assert len(reached) == 2
    assert dict(store.items()) == START

    def handle(tx: limpet.Transaction) -> None:
        with pytest.raises(limpet.KeyTooLarge):
            tx.put(store, bytes(longest + 1), b"")
        tx.put(store, b"a", b"one")

    pool.transaction(handle)
    assert dict(store.items()) == START | {b"a": b"one"}


def test_values_may_be_longer_than_a_node(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction, size: int) -> None:
        for key in (b"a", b"b", b"d"):
            tx.put(store, key, bytes([size & 255]) * size)

    for size in (5000, 100, 20_000, 3):
        pool.transaction(lambda tx, size=size: work(tx, size))
        assert {store.get(key) for key in (b"a", b"b", b"d")} == {bytes([size & 255]) * size}
        sound(store)


def test_keys_and_values_are_bytes_or_like_it(pool: limpet.Pool, store: Any) -> None:
    pool.transaction(lambda tx: tx.put(store, bytearray(b"a"), memoryview(b"one")))
    assert store.get(b"a") == b"one"
    for work in (
        lambda tx: tx.get(store, "a"),
        lambda tx: tx.put(store, b"a", "one"),
        lambda tx: tx.put(store, 1, b"one"),
        lambda tx: tx.delete(store, None),
    ):
        with pytest.raises(TypeError, match="bytes"):
            pool.transaction(work)
    assert store.get(b"a") == b"one"


# ---- scans --------------------------------------------------------------------------------------


@only_trees
def test_a_scan_has_the_range_in_order_and_own_writes(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction) -> list[Any]:
        tx.put(store, b"aa", b"new")
        tx.delete(store, b"b")
        tx.put(store, b"c", b"three")
        tx.put(store, b"d", b"new")
        return [tx.scan(store), tx.scan(store, b"aa", b"d"), tx.scan(store, b"d", b"a")]

    whole = [(b"a", b"1"), (b"aa", b"new"), (b"c", b"three"), (b"d", b"new")]
    assert pool.transaction(work) == [whole, whole[1:3], []]
    assert list(store.scan()) == whole


@only_trees
def test_bounds_of_a_scan_are_bytes_or_like_it(pool: limpet.Pool, store: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        pool.transaction(lambda tx: tx.scan(store, "a"))


def test_a_store_that_is_not_ordered_is_not_scanned(pool: limpet.Pool) -> None:
    store = pool.store(HASH, name="test")
    for bounds in ((), (b"a",), (b"a", b"b")):
        with pytest.raises(limpet.StoreError, match="not ordered"):
            pool.transaction(lambda tx, bounds=bounds: tx.scan(store, *bounds))


@only_trees
def test_a_scan_has_all_of_one_moment(pool: limpet.Pool, store: Any, other: Any) -> None:
    keys = [b"%03d" % number for number in range(60)]
    store.put_many(dict.fromkeys(keys, b"0"))

    def turn(tx: limpet.Transaction) -> None:
        for key in keys:
            tx.put(other, key, b"1")

    change = once(lambda: other.pool.transaction(turn))

    def work(tx: limpet.Transaction) -> set[bytes]:
        first = {tx.get(store, keys[0])}
        change()
        return first | {value for _, value in tx.scan(store, keys[0], b"1")}

    assert pool.transaction(work) == {b"1"}


# ---- named objects ------------------------------------------------------------------------------


def test_a_first_named_object_is_read_by_its_own_transaction(pool: limpet.Pool) -> None:
    def work(tx: limpet.Transaction) -> bytes:
        tx["x"] = b"1"
        return tx["x"]

    assert pool.transaction(work) == b"1"


def test_named_objects_are_like_entries_of_a_dict(pool: limpet.Pool) -> None:
    def make(tx: limpet.Transaction) -> None:
        tx["x"] = b"1"
        tx["\N{GREEK SMALL LETTER PI}"] = bytes(1000)

    def change(tx: limpet.Transaction) -> tuple[bool, bool]:
        tx["x"] += b"2"
        del tx["\N{GREEK SMALL LETTER PI}"]
        return "x" in tx, "\N{GREEK SMALL LETTER PI}" in tx

    pool.transaction(make)
    assert pool.transaction(change) == (True, False)
    assert pool.transaction(lambda tx: tx["x"]) == b"12"
    for work in (lambda tx: tx["y"], lambda tx: tx.__delitem__("y")):
        with pytest.raises(KeyError):
            pool.transaction(work)
    with pytest.raises(TypeError, match="name of an object is text"):
        pool.transaction(lambda tx: tx[b"x"])


def test_a_mere_look_at_a_named_object_makes_no_store(pool: limpet.Pool) -> None:
    assert not pool.transaction(lambda tx: "x" in tx)
    for work in (lambda tx: tx["x"], lambda tx: tx.__delitem__("x")):
        with pytest.raises(KeyError):
            pool.transaction(work)
    assert pool.stores() == []
    pool.transaction(lambda tx: tx.__setitem__("x", b"1"))
    assert [made["kind"] for made in pool.stores()] == [TREE]


# ---- several stores and nodes -------------------------------------------------------------------


def test_it_spans_stores_memory_nodes_and_named_objects(pool: limpet.Pool, two: list[Any]) -> None:
    here, there = two
    keys = [key_of(0), key_of(1)]

    def move(tx: limpet.Transaction) -> None:
        for key in keys:
            value = tx.get(here, key)
            tx.delete(here, key)
            tx.put(there, key, value)
        tx["moves"] = b"%d" % (int(tx["moves"]) + 1 if "moves" in tx else 1)

    here.put_many(dict.fromkeys(keys, b"v"))
    pool.transaction(move)
    assert dict(here.items()) == {}
    assert dict(there.items()) == dict.fromkeys(keys, b"v")
    here.put(keys[0], b"again")
    with pytest.raises(KeyError):
        pool.transaction(move)  # there is no second key
    assert dict(here.items()) == {keys[0]: b"again"}
    assert dict(there.items()) == dict.fromkeys(keys, b"v")
    assert pool.transaction(lambda tx: tx["moves"]) == b"1"
    sound(here)
    sound(there)


def test_a_lost_memory_node_ends_transactions_that_need_it_and_no_others(
    pool: limpet.Pool, store: Any
) -> None:
    here, there = key_of(0), key_of(1)
    store.put_many({here: b"old", there: b"old"})
    pool.fail_node(1)

    def work(tx: limpet.Transaction) -> None:
        tx.put(store, here, b"new")
        tx.put(store, there, b"new")

    for needs in (work, lambda tx: tx.get(store, there)):
        with pytest.raises(limpet.NodeFailed):
            pool.transaction(needs)
    assert store.get(here) == b"old"
    pool.transaction(lambda tx: tx.put(store, here, b"newer"))
    assert store.get(here) == b"newer"
    assert pool.audit()["leaked"] == 0


def test_many_keys_in_one_transaction(pool: limpet.Pool, store: Any) -> None:
    pairs = {b"many%04d" % number: b"v" * (number % 90) for number in range(MANY)}

    def put(tx: limpet.Transaction) -> None:
        for key, value in pairs.items():
            tx.put(store, key, value)

    def delete(tx: limpet.Transaction) -> None:
        for key in pairs:
            tx.delete(store, key)

    pool.transaction(put)
    assert dict(store.items()) == START | pairs
    sound(store)
    pool.transaction(delete)
    assert dict(store.items()) == START
    sound(store)


def test_many_new_keys_are_not_staged_anew_for_each_split(
    pool: limpet.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pool.store(HASH, name="small", groups=2, bucket_size=2)
    staged = [0]

    class Counted(SlotWriteSet):
        def stage(self, key: bytes, value: bytes | None) -> int:
            staged[0] += 1
            return super().stage(key, value)

    def put(tx: limpet.Transaction) -> None:
        for number in range(2 * MANY):
            tx.put(store, b"%d" % number, b"v")

    monkeypatch.setattr("limpet.stores.rtx.race.SlotWriteSet", Counted)
    pool.transaction(put)
    assert len(store) == 2 * MANY
    assert staged[0] < 12 * len(store)
    sound(store)


@pytest.mark.exhaustive_in_pure("many keys")
def test_who_writes_many_keys_shows_that_it_does_not_stand_still(
    pool: limpet.Pool, store: Any
) -> None:
    """The commit is one operation; a client that needs memory kills one that stands still in it."""
    progress = int(pool.client.slot) + PROGRESS
    before = pool.endpoint.load(progress)

    def put(tx: limpet.Transaction) -> None:
        for number in range(5 * MANY):
            tx.put(store, b"%d" % number, b"v")

    pool.transaction(put)
    assert pool.endpoint.load(progress) - before >= 5 * MANY // 100


def test_when_there_is_no_room_everything_is_as_it_was(pools: Any, kind: str) -> None:
    pool = pools(node_size="512KiB", clients=16)
    store = pool.store(kind, name="test")
    store.put_many(START)

    def fill(tx: limpet.Transaction) -> None:
        for number in range(8):
            tx.put(store, b"%d" % number, bytes(60_000))
        tx.delete(store, b"a")

    for _ in range(3):
        with pytest.raises(limpet.StoreFull):
            pool.transaction(fill)
        assert dict(store.items()) == START
        sound(store)
    pool.transaction(lambda tx: tx.delete(store, b"a"))
    assert dict(store.items()) == {b"b": b"2", b"c": b"3"}


@pytest.mark.either_build("the same lines")
def test_keys_that_come_and_go_in_transactions_take_no_more_memory(pools: Any, kind: str) -> None:
    """As those that are deleted without one: leaves that they leave empty are merged."""
    pool = pools(node_size="512KiB", clients=16)
    store = pool.store(kind, name="test")

    def move_on(tx: limpet.Transaction, number: int) -> None:
        tx.insert(store, b"%064d" % number, bytes(60))
        if number >= 20:
            tx.delete(store, b"%064d" % (number - 20))

    for number in range(2500):
        pool.transaction(lambda tx, number=number: move_on(tx, number))
    assert len(store) == 20
    assert sound(store)["reachable"] < 100_000


# ---- conflicts ----------------------------------------------------------------------------------


def test_what_a_function_sees_is_always_consistent(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    """It begins anew at the next read, as soon as what it has read is not true any more."""
    seen = []

    def swap(tx: limpet.Transaction) -> None:
        a, b = tx.get(other, b"a"), tx.get(other, b"b")
        tx.put(other, b"a", b)
        tx.put(other, b"b", a)

    change = once(lambda: other.pool.transaction(swap))

    def work(tx: limpet.Transaction) -> None:
        a = tx.get(store, b"a")
        change()
        seen.append((a, tx.get(store, b"b")))

    pool.transaction(work)
    assert seen == [(b"2", b"1")]


def test_what_it_sees_of_several_stores_is_consistent(
    pool: limpet.Pool, two: list[Any], others: list[Any]
) -> None:
    seen = []
    for store in two:
        store.put(b"a", b"1")

    def turn(tx: limpet.Transaction) -> None:
        for store in others:
            tx.put(store, b"a", b"2")
            tx.put(store, b"b", b"2")

    change = once(lambda: others[0].pool.transaction(turn))

    def work(tx: limpet.Transaction) -> None:
        first = tx.get(two[0], b"a"), tx.get(two[0], b"b")
        change()
        seen.append((*first, tx.get(two[1], b"a"), tx.get(two[1], b"b")))

    pool.transaction(work)
    assert seen == [(b"2",) * 4]


def test_a_value_that_comes_again_is_no_conflict(pool: limpet.Pool, store: Any, other: Any) -> None:
    calls = []

    def there_and_back() -> None:
        for number in range(200):
            other.put(b"a", b"%d" % number)
            other.insert(b"z", b"")
            other.delete(b"z")
        other.put(b"a", b"1")

    change = once(there_and_back)

    def work(tx: limpet.Transaction) -> None:
        calls.append((tx.get(store, b"a"), tx.get(store, b"z")))
        change()
        tx.put(store, b"b", tx.get(store, b"c"))

    pool.transaction(work)
    assert calls == [(b"1", None)]
    assert store.get(b"b") == b"3"
    sound(store)


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
def test_a_change_of_other_keys_is_no_conflict(
    pool: limpet.Pool, store: Any, other: Any, writes: bool
) -> None:
    """Also if they are in the leaves that it has read, and writes."""
    keys = [b"%02d" % number for number in range(12)]
    store.put_many([(key, b"old") for key in keys])
    calls = []
    change = once(lambda: [other.put(key, b"new") for key in keys[6:]])

    def work(tx: limpet.Transaction) -> None:
        calls.append([tx.get(store, key) for key in keys[:5]])
        change()
        assert tx.get(store, keys[5]) == b"old"
        if writes:
            for key in keys[:6]:
                tx.put(store, key, b"mine")

    pool.transaction(work)
    assert calls == [[b"old"] * 5]
    assert [store.get(key) for key in keys] == [b"mine" if writes else b"old"] * 6 + [b"new"] * 6
    sound(store)


def test_a_key_that_was_changed_beside_others_is_a_conflict(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    keys = [b"%02d" % number for number in range(12)]
    store.put_many([(key, b"old") for key in keys])
    calls = []
    change = once(lambda: [other.put(key, b"new") for key in keys[4:]])

    def work(tx: limpet.Transaction) -> None:
        calls.append([tx.get(store, key) for key in keys[:5]])
        change()
        tx.put(store, keys[0], b"mine")

    pool.transaction(work)
    assert calls == [[b"old"] * 5, [b"old"] * 4 + [b"new"]]
    sound(store)


def test_no_update_is_lost(pool: limpet.Pool, store: Any, other: Any) -> None:
    calls = []
    change = once(lambda: other.put(b"a", b"100"))

    def work(tx: limpet.Transaction) -> None:
        calls.append(value := int(tx.get(store, b"a")))
        change()
        tx.put(store, b"a", b"%d" % (value + 1))

    pool.transaction(work)
    assert calls == [1, 100]
    assert store.get(b"a") == b"101"
    sound(store)


def test_write_skew_is_refused(pool: limpet.Pool, two: list[Any], others: list[Any]) -> None:
    """Each takes the one that the other one only looks at, if both are there."""
    keys = [key_of(0), key_of(1)]
    for store, key in zip(two, keys, strict=True):
        store.put(key, b"")

    def take(stores: list[Any], which: int, then: Callable[[], None]) -> Any:
        def work(tx: limpet.Transaction) -> bool:
            both = all(tx.get(*each) is not None for each in zip(stores, keys, strict=True))
            if both:
                tx.delete(stores[which], keys[which])
            then()
            return both

        return work

    second = take(others, 1, lambda: None)
    first = take(two, 0, once(lambda: others[0].pool.transaction(second)))
    assert not pool.transaction(first)
    assert keys[0] in two[0]
    assert keys[1] not in two[1]


def test_write_skew_over_missing_keys_is_refused(
    pool: limpet.Pool, two: list[Any], others: list[Any]
) -> None:
    """Each inserts what the other one has looked for, if neither is there."""
    keys = [key_of(0), key_of(1)]

    def add(stores: list[Any], which: int, then: Callable[[], None]) -> Any:
        def work(tx: limpet.Transaction) -> bool:
            none = all(tx.get(*each) is None for each in zip(stores, keys, strict=True))
            if none:
                tx.insert(stores[which], keys[which], b"")
            then()
            return none

        return work

    second = add(others, 1, lambda: None)
    first = add(two, 0, once(lambda: others[0].pool.transaction(second)))
    assert not pool.transaction(first)
    assert keys[0] not in two[0]
    assert keys[1] in two[1]


def test_a_missing_key_is_read_as_well_as_one_that_is_there(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    change = once(lambda: other.put(b"z", b"26"))

    def work(tx: limpet.Transaction) -> None:
        missing = tx.get(store, b"z") is None
        change()
        tx.put(store, b"a", b"missing" if missing else b"there")

    pool.transaction(work)
    assert store.get(b"a") == b"there"


@only_trees
def test_an_insert_into_a_range_that_was_scanned_is_a_conflict(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    change = once(lambda: other.insert(b"xy", b"phantom"))

    def work(tx: limpet.Transaction) -> None:
        count = len(tx.scan(store, b"x", b"y"))
        change()
        tx.put(store, b"a", b"%d" % count)

    pool.transaction(work)
    assert store.get(b"a") == b"1"


def test_who_meets_conflicts_in_all_attempts_is_told_how_many(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    calls = []

    def work(tx: limpet.Transaction) -> None:
        calls.append(tx.get(store, b"a"))
        other.put(b"a", b"%d" % (len(calls) + 1))
        tx.put(store, b"b", b"two")

    with pytest.raises(
        limpet.TransactionConflict, match=r"\b3 attempts.*the key b'a' of the store 'test'"
    ):
        pool.transaction(work, attempts=3)
    assert calls == [b"1", b"2", b"3"]
    assert dict(store.items()) == START | {b"a": b"4"}
    sound(store)


def test_a_function_that_handles_all_errors_is_called_again_as_well(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    change = once(lambda: other.put_many({b"a": b"one", b"b": b"two"}))
    handled = []

    def work(tx: limpet.Transaction) -> tuple[Any, Any]:
        a = tx.get(store, b"a")
        change()
        b = b""
        try:
            b = tx.get(store, b"b")
        except Exception as error:
            handled.append(error)
        tx.put(store, b"sum", a + b)
        return a, b

    assert pool.transaction(work) == (b"one", b"two")
    assert handled == []
    assert store.get(b"sum") == b"onetwo"


@pytest.mark.parametrize("writes", [True, False])
def test_a_function_that_swallows_even_the_conflict_is_called_again(
    pool: limpet.Pool, store: Any, other: Any, writes: bool
) -> None:
    change = once(lambda: other.put_many({b"a": b"one", b"b": b"two"}))

    def work(tx: limpet.Transaction) -> bytes:
        found: bytes = tx.get(store, b"a")
        change()
        try:
            found += tx.get(store, b"b")
        except BaseException:
            found += b"?"
        if writes:
            tx.put(store, b"sum", found)
        return found

    assert pool.transaction(work) == b"onetwo"
    assert store.get(b"sum") == (b"onetwo" if writes else None)


# ---- reading only -------------------------------------------------------------------------------


def test_a_transaction_that_only_reads_writes_nothing(pool: limpet.Pool, store: Any) -> None:
    def work(tx: limpet.Transaction) -> object:
        return tx.get(store, b"a"), tx.get(store, b"z"), "x" in tx

    pool.transaction(lambda tx: tx.__setitem__("y", b""))
    pool.endpoint.reset_counters()
    assert pool.transaction(work) == (b"1", None, False)
    found = pool.endpoint.counters()
    assert found["reads"] > 0
    assert found["writes"] == found["cas"] == found["atomics"] == found["bytes_written"] == 0


@only_trees
def test_a_transaction_that_only_scans_writes_nothing(pool: limpet.Pool, store: Any) -> None:
    pool.endpoint.reset_counters()
    assert pool.transaction(lambda tx: tx.scan(store)) == sorted(START.items())
    found = pool.endpoint.counters()
    assert found["writes"] == found["cas"] == found["atomics"] == found["bytes_written"] == 0


def test_a_transaction_that_only_reads_is_in_nobodys_way(
    pool: limpet.Pool, store: Any, other: Any
) -> None:
    def work(tx: limpet.Transaction) -> object:
        found = tx.get(store, b"a"), tx.get(store, b"b")
        other.put(b"a", b"one")
        assert other.stats()["retries"] == 0
        return found

    assert pool.transaction(work) == (b"1", b"2")
    assert store.get(b"a") == b"one"


# ---- wrong use ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3", None])
def test_attempts_must_be_a_number_above_zero(pool: limpet.Pool, store: Any, attempts: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="attempts must be a whole number above 0"):
        pool.transaction(lambda tx: tx.put(store, b"a", b"one"), attempts)
    assert store.get(b"a") == b"1"


def test_a_store_of_another_kind_takes_no_part(pool: limpet.Pool, store: Any) -> None:
    race = pool.store("race", name="race", capacity=64)
    for wrong in (race, pool.dict("dict", capacity=64), None, b"test"):
        for work in (
            lambda tx, wrong=wrong: tx.get(wrong, b"a"),
            lambda tx, wrong=wrong: tx.put(wrong, b"a", b"one"),
            lambda tx, wrong=wrong: tx.scan(wrong),
        ):
            with pytest.raises(limpet.ParameterError, match="rtx-sherman and rtx-race"):
                pool.transaction(work)


def test_a_store_of_another_pool_handle_takes_no_part(pool: limpet.Pool, other: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="another pool handle"):
        pool.transaction(lambda tx: tx.put(other, b"a", b"one"))
    assert other.get(b"a") == b"1"


def test_a_closed_pool_has_no_transactions(pools: Any, pool: limpet.Pool, kind: str) -> None:
    closed = pools.again(pool)
    store = closed.store(kind, name="test")
    closed.close()
    for work in (
        lambda tx: tx.get(store, b"a"),
        lambda tx: tx.put(store, b"a", b"one"),
        lambda tx: "x" in tx,
    ):
        with pytest.raises(limpet.PoolClosed):
            closed.transaction(work)


def test_a_transaction_is_of_no_use_after_its_end(pool: limpet.Pool, store: Any) -> None:
    kept: list[limpet.Transaction] = []
    pool.transaction(kept.append)

    def fail(tx: limpet.Transaction) -> None:
        kept.append(tx)
        raise Sudden

    with pytest.raises(Sudden):
        pool.transaction(fail)
    for tx in kept:
        for use in (
            lambda tx=tx: tx.get(store, b"a"),
            lambda tx=tx: tx.put(store, b"a", b"one"),
            lambda tx=tx: tx.delete(store, b"a"),
        ):
            with pytest.raises(limpet.StoreError, match="is over"):
                use()
    assert dict(store.items()) == START


# ---- many at once -------------------------------------------------------------------------------


def add_one(store: Any, key: bytes) -> Callable[[limpet.Transaction], None]:
    def work(tx: limpet.Transaction) -> None:
        tx.put(store, key, b"%d" % (int(tx.get(store, key)) + 1))

    return work


def test_writes_that_a_signal_handler_has_cut_do_no_harm_to_the_next_transaction() -> None:
    class Cut(Exception):
        pass

    class Key(bytes):
        compared = 0

        def __le__(self, other: bytes) -> bool:
            Key.compared += 1
            if Key.compared == 4:
                raise Cut  # as a signal handler may, in the pure build
            return bytes.__le__(self, other)

    writes = PendingWrites()
    if not COMPILED:
        for number in (3, 1, 2, 0):
            writes.write(Key(b"%d" % number), b"")
        with pytest.raises(Cut):
            writes.sort()
        writes.clear()
    for number in range(20):
        writes.write(b"%d" % number, b"v%d" % number)
    assert [write.key for write in writes.writes] == [b"%d" % number for number in range(20)]
    assert [write.value for write in writes.writes] == [b"v%d" % number for number in range(20)]
    assert [writes.place_of(b"%d" % number) for number in range(20)] == list(range(20))


def test_writes_are_sorted_by_key() -> None:
    for count in (0, 1, 2, 7, 8, 9, 20):
        writes = PendingWrites()
        for number in range(count):
            writes.write(b"%02d" % (number * 7 % 23), b"%d" % number)
        writes.sort()
        found = [(write.key, write.value) for write in writes.writes[:count]]
        assert found == sorted(
            (b"%02d" % (number * 7 % 23), b"%d" % number) for number in range(count)
        )
        assert [writes.place_of(key) for key, _ in found] == list(range(count))


def test_threads_may_share_a_pool_handle(pool: limpet.Pool, store: Any) -> None:
    threads, rounds = 4, 50 if COMPILED else 15
    wrong: list[BaseException] = []

    def move(tx: limpet.Transaction) -> None:
        add_one(store, b"a")(tx)
        tx.put(store, b"b", b"%d" % (int(tx.get(store, b"b")) - 1))

    def look(tx: limpet.Transaction) -> int:
        return int(tx.get(store, b"a")) + int(tx.get(store, b"b"))

    def run() -> None:
        try:
            for _ in range(rounds):
                pool.transaction(move)
                assert pool.transaction(look) == 3
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert store.get(b"a") == b"%d" % (1 + threads * rounds)
    sound(store)


def test_forked_children_use_the_handles_that_they_inherit(pool: limpet.Pool, store: Any) -> None:
    rounds = 50 if COMPILED else 15

    def client() -> None:
        for _ in range(rounds):
            pool.transaction(add_one(store, b"a"))

    pool.transaction(add_one(store, b"a"))
    gather(client, client)
    pool.transaction(add_one(store, b"a"))
    assert store.get(b"a") == b"%d" % (3 + 2 * rounds)
    sound(store)


@pytest.mark.exhaustive("every kind", quick=["rtx-race"])
@pytest.mark.skipif(not COMPILED, reason="between two steps of Python there is always room for one")
def test_a_signal_handler_may_end_one_at_any_moment(pool: limpet.Pool, store: Any) -> None:
    """And the handle is of use afterwards."""

    def ring(number: int, frame: object) -> None:
        raise Sudden

    def client() -> tuple[int, int]:
        source, done, ended = random.Random(5), 0, 0
        most_s = 200e-6  # as much as lets half of them end well, however fast the machine is
        pool.transaction(add_one(store, b"a"))
        signal.signal(signal.SIGALRM, ring)
        for _ in range(20_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-6, most_s))
                pool.transaction(add_one(store, b"a"))
                done += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                most_s = max(most_s / 1.01, 2e-6)
            except Sudden:
                ended += 1
                most_s = min(most_s * 1.01, 1.0)
        return done, ended

    ((done, ended),) = gather(client)
    assert min(done, ended) > 100
    assert 2 + done <= int(store.get(b"a")) <= 2 + done + ended
    sound(store)


def test_what_would_run_after_the_transaction_is_refused(pool: limpet.Pool) -> None:
    """The call of an `async def` or a generator returned, and nothing was committed."""
    store = pool.store(HASH, name="s")

    async def begun(tx: limpet.Transaction) -> None:
        tx.put(store, b"k", b"v")

    def stepped(tx: limpet.Transaction) -> Any:
        tx.put(store, b"k", b"v")
        yield

    for work, name in ((begun, "coroutine"), (stepped, "generator")):
        with pytest.raises(TypeError, match=f"returned a {name}"):
            pool.transaction(work)
    assert b"k" not in store


def test_values_that_were_read_twice_are_not_kept(pool: limpet.Pool) -> None:
    """The second reading stayed behind those that count, and kept the value. (The handle knows the
    value that it has found last.)"""
    store = pool.store(HASH, name="s")
    for number in range(6):
        store.put(b"%d" % number, b"%d" % number * 100)
    kept: list[Any] = []
    for count in range(6, 0, -1):

        def reads(tx: limpet.Transaction, count: int = count) -> None:
            for number in [*range(count), 0]:
                value = tx.get(store, b"%d" % number)
            kept.append(value)

        pool.transaction(reads)
    del kept[-1]
    alone = [bytes([number]) * 100 for number in range(5)]
    assert [sys.getrefcount(each) for each in kept] == [sys.getrefcount(each) for each in alone]


def test_a_function_that_ends_its_transaction_is_told_so(pool: limpet.Pool) -> None:
    store = pool.store(HASH, name="s")

    def ends(tx: limpet.Transaction) -> str:
        tx.put(store, b"k", b"v")
        tx.end()
        return "done"

    with pytest.raises(TypeError, match="called end"):
        pool.transaction(ends)
    assert b"k" not in store


def test_what_takes_part_in_no_transaction_is_named_in_short(pool: limpet.Pool) -> None:
    mapping = pool.dict("d")
    mapping["k"] = "v" * 1000
    with pytest.raises(limpet.ParameterError, match="a SharedDict takes part in no") as caught:
        pool.transaction(lambda tx: tx.get(mapping, b"k"))
    assert len(str(caught.value)) < 300
    with pytest.raises(TypeError, match="make, not int"):
        pool.transaction(lambda tx: tx.read(5))
    with pytest.raises(TypeError, match="go by whole numbers, not by a str"):
        pool.objects("cells", 3)["a"]


@pytest.mark.parametrize("seed", range(4))
def test_large_values_beside_small_ones_find_memory_that_was_made_ready(
    pools: Any, seed: int
) -> None:
    # runs of pages that fit in one order may not fit in another, and then nothing ends the search
    pool = pools(nodes=3)
    stores = [pool.store(kind, name=kind) for kind in KINDS]
    draw = random.Random(seed)
    model: dict[tuple[int, bytes], bytes] = {}
    for _ in range(500):
        changes: dict[tuple[int, bytes], bytes | None] = {}
        for _ in range(draw.choice((2, 9, 17, 64))):
            number = draw.randrange(2)
            size = draw.choice((8, 40, 300, 3000, 5000 if number else 40))
            value = None if draw.random() < 0.4 else bytes(size)
            changes[number, b"%d" % draw.randrange(300)] = value

        def run(tx: limpet.Transaction, changes: Any = changes) -> None:
            for (number, key), value in changes.items():
                if value is not None:
                    tx.put(stores[number], key, value)
                elif (number, key) in model:
                    tx.delete(stores[number], key)

        pool.transaction(run)
        for at, value in changes.items():
            if value is None:
                model.pop(at, None)
            else:
                model[at] = value
    for number, store in enumerate(stores):
        assert dict(store.items()) == {key: v for (n, key), v in model.items() if n == number}
        store.check()
