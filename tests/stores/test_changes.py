"""`store.changes()`: the changes of keys as events, also when writers are killed."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kit.processes import children, dies_at, gather
from kit.stores import nothing_leaked

import limpet
from limpet.stores.channels import changes as changes_module
from limpet.stores.core.status import AGAIN, PUT
from limpet.stores.transactions.layout import LOCKED

PATIENCE_S = 60.0
WATCHED = ("race", "rtx-race", "rtx-sherman")
LARGE = b"L" * 5000


def all_of(changes: Any) -> list[tuple[Any, str]]:
    """The events that are there now."""
    found = []
    try:
        while True:
            found.append(tuple(changes.get_nowait()))
    except queue.Empty:
        return found


def small(pools: Any, **parameters: Any) -> Any:
    return pools(clients=8, **parameters)


def in_transaction(store: Any) -> None:
    def work(tx: Any) -> None:
        tx.put(store, b"one", b"1")
        tx.delete(store, b"two")

    store.pool.transaction(work)


CALLS: dict[str, tuple[Callable[[Any], object], list[tuple[bytes, str]]]] = {
    "put": (lambda s: s.put(b"one", b"1"), [(b"one", "put")]),
    "put of an object": (lambda s: s.put(b"one", LARGE), [(b"one", "put")]),
    "insert": (lambda s: s.insert(b"new", b"1"), [(b"new", "put")]),
    "update": (lambda s: s.update(b"two", b"1"), [(b"two", "put")]),
    "delete": (lambda s: s.delete(b"two"), [(b"two", "deleted")]),
    "swap": (lambda s: s.swap(b"two", b"2", b"3"), [(b"two", "put")]),
    "swap for nothing": (lambda s: s.swap(b"two", b"2"), [(b"two", "deleted")]),
    "put_many": (
        lambda s: s.put_many([(b"one", b"1"), (b"two", b"3"), (b"three", b"4")]),
        [(b"one", "put"), (b"three", "put"), (b"two", "put")],
    ),
    "delete_many": (lambda s: s.delete_many([b"two", b"no", b"keep"]),
                    [(b"keep", "deleted"), (b"two", "deleted")]),
}  # fmt: skip


def reset(store: Any) -> None:
    for key in list(store):
        store.delete(key)
    store.put(b"two", b"2")
    store.put(b"keep", b"k")


@pytest.mark.parametrize("kind", WATCHED)
def test_each_change_is_an_event(kind: str, pools: Any) -> None:
    pool = small(pools)
    store = pool.store(kind)
    changes = store.changes()
    beside = limpet.open(pool.url).store(kind)
    for name, (call, events) in CALLS.items():
        for writer in (store, beside):
            reset(writer)
            all_of(changes)
            call(writer)
            found = all_of(changes)
            assert sorted({each for each in found if each[0] != b"no"}) == events, name
    for refused in (
        lambda: store.insert(b"keep", b"1"), lambda: store.update(b"none", b"1"),
        lambda: store.delete(b"none"), lambda: store.put(b"k" * 100_000, b""),
        lambda: store.put_many([(b"a", b"b"), (1, b"c")]),
    ):  # fmt: skip
        reset(store)
        all_of(changes)
        with pytest.raises((limpet.LimpetError, KeyError, TypeError)):
            refused()
        assert {key for key, _ in all_of(changes)} <= {b"a"}
    assert not store.swap(b"keep", b"another", b"1")
    assert all_of(changes) == []
    beside.pool.close()


def test_a_transaction_and_a_reservation_are_noted(pools: Any) -> None:
    pool = small(pools)
    hashed, tree = pool.store("rtx-race", "h"), pool.store("rtx-sherman", "t")
    reset(hashed)
    reset(tree)
    of_hashed, of_tree = hashed.changes(), tree.changes()
    in_transaction(hashed)
    assert sorted(all_of(of_hashed)) == [(b"one", "put"), (b"two", "deleted")]

    def both(tx: Any) -> None:
        tx.put(hashed, b"both", b"1")
        tx.put(tree, b"both", b"2")

    pool.transaction(both)
    assert all_of(of_hashed) == all_of(of_tree) == [(b"both", "put")]
    with hashed.reserve(b"reserved", 3) as buffer:
        buffer[:] = b"abc"
    assert all_of(of_hashed) == [(b"reserved", "put")]
    with pytest.raises(ZeroDivisionError), hashed.reserve(b"reserved", 3):
        raise ZeroDivisionError
    assert all_of(of_hashed) == []


def test_readers_see_their_prefix_from_now_on(pools: Any) -> None:
    store = small(pools).store("race")
    early = store.changes(b"a/")
    store.put(b"a/1", b"")
    store.put(b"b/1", b"")
    late = store.changes()
    store.put(b"a/" + b"k" * 90, b"")
    assert all_of(early) == [(b"a/1", "put"), (b"a/" + b"k" * 90, "put")]
    assert all_of(late) == [(b"a/" + b"k" * 90, "put")]
    with pytest.raises(queue.Empty):
        late.get(timeout=0.001)
    with pytest.raises(TypeError):
        store.changes(1)


def test_a_slow_reader_is_told_that_it_missed_changes(pools: Any) -> None:
    store = small(pools).store("rtx-sherman")
    slow, other = store.changes(), store.changes(b"none of them")
    for number in range(2000):
        store.put(b"key %d" % (number % 7), b"%d" % number)
    assert all_of(slow) == all_of(other) == [(None, "missed")]
    store.put_many([(b"many %d" % number, b"") for number in range(2000)])
    found = all_of(slow)
    assert found[0] == (None, "missed")
    store.put(b"after", b"")
    assert all_of(slow) == [(b"after", "put")]


def test_a_transaction_of_more_keys_than_a_ring_is_missed_as_a_whole(pools: Any) -> None:
    store = small(pools).store("rtx-race")
    changes = store.changes()

    def work(tx: Any) -> None:
        for number in range(700):
            tx.put(store, b"key %d" % number, b"")

    store.pool.transaction(work)
    store.put(b"after", b"")
    found = all_of(changes)
    assert found[0] == (None, "missed")
    store.put(b"after that", b"")
    assert all_of(changes) == [(b"after that", "put")]


@pytest.mark.parametrize("kind", WATCHED)
def test_a_reader_that_follows_the_events_of_many_writers_has_what_the_store_has(
    kind: str, pools: Any
) -> None:
    store = small(pools).store(kind)
    changes = store.changes()
    there = store.pool.barrier("all", 3)
    rounds = 150

    def writes(number: int) -> None:
        there.wait(PATIENCE_S)
        for turn in range(rounds):
            key = b"key %d" % (turn % 5)
            if turn % 3:
                store.put(key, b"%d %d" % (number, turn))
            else:
                store.delete_many([key])
        store.put(b"end %d" % number, b"")

    def follows() -> dict[bytes, bytes]:
        there.wait(PATIENCE_S)
        seen: dict[bytes, bytes] = {}
        ended = 0
        while ended < 2:
            key, _ = changes.get(timeout=PATIENCE_S)
            ended += key is not None and key.startswith(b"end")
            for one in [key] if key is not None else [*seen, *store]:
                value = store.get(one)
                if value is None:
                    seen.pop(one, None)
                else:
                    seen[one] = value
        return seen

    followed, *_ = gather(follows, lambda: writes(0), lambda: writes(1))
    assert followed == dict(store.items())


KILLED = {
    "race": ("put", "insert", "delete", "swap", "put_many", "delete_many"),
    "rtx-race": ("update", "insert", "transaction"),
    "rtx-sherman": ("update", "delete", "put_many", "transaction"),
}


@pytest.mark.soak("noted as others are", cases=["rtx-sherman delete", "rtx-sherman put_many"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind, name, id=f"{kind} {name}",
            marks=[] if name == "insert" else pytest.mark.exhaustive("a child for each step"),
        )
        for kind, names in KILLED.items()
        for name in names
    ],
)  # fmt: skip
def test_a_change_of_a_killed_client_is_told(kind: str, name: str, pools: Any) -> None:
    pool = small(pools)
    store = pool.store(kind)
    call = in_transaction if name == "transaction" else CALLS[name][0]
    changes = store.changes()
    reset(store)
    call(store)  # memory is ready
    fuse, running = 0, True
    told: set[str] = set()
    while running:
        fuse += 1
        reset(store)
        before = dict(store.items())
        all_of(changes)
        late = store.changes()

        def killed() -> None:
            call(store)

        running = dies_at(pool, fuse, killed)
        found = all_of(changes)
        assert {*found} <= {*all_of(late)}  # and perhaps what earlier deaths have left
        after = dict(store.items())
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        keys = {key for key, _ in found}
        assert changed <= keys or None in keys, f"step {fuse}: {changed} changed, {found} came"
        told |= {what for _, what in found}
        if not fuse % 3:  # the next client of the slot settles what was left
            assert dies_at(pool, 1_000_000, lambda: store.put(b"next", b"")) is False
            assert (b"next", "put") in all_of(changes)
        assert all_of(changes) == []
    assert "unsure" in told
    assert told - {"unsure"}
    store.check()
    nothing_leaked(pool)


def test_a_kill_of_the_first_that_watches_leaves_a_store_that_can_be_watched(pools: Any) -> None:
    pool = small(pools)

    def made(name: str) -> Any:
        store = pool.store("race", name)
        store.put(b"key", b"1")
        return store

    pool.endpoint.fuse = most = 1 << 40
    made("first").changes()
    steps = most - pool.endpoint.fuse
    pool.endpoint.fuse = 0
    # Nearly all of its steps fill the memory of the rings with zeros.
    for fuse in (*range(1, steps, steps // 7), *range(steps - 25, steps + 1, 3)):
        store = made(f"s{fuse}")
        dies_at(pool, fuse, store.changes)
        store.put(b"key", b"1")
        changes = store.changes()
        store.put(b"key", b"2")
        assert all_of(changes) == [(b"key", "put")]
        pool.drop(store.name)
    nothing_leaked(pool)


def test_a_stopped_reader_and_a_stopped_writer_hold_up_nobody(pools: Any) -> None:
    store = small(pools, lease=0.05).store("race")
    changes = store.changes()

    def works() -> None:
        mine = store.changes()
        while True:
            store.put(b"theirs", b"")
            mine.get()

    def comes(key: bytes) -> bool:
        return any(change.key == key for change in iter(lambda: changes.get(timeout=PATIENCE_S), 0)
                   if change.key in (key, None))  # fmt: skip

    with children([works]) as [(pid, _)]:
        for number in range(5):
            assert comes(b"theirs")
            os.kill(pid, signal.SIGSTOP)
            store.put(b"ours %d" % number, b"")
            assert comes(b"ours %d" % number)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)


def test_a_sleeping_reader_is_told_of_a_death(pools: Any) -> None:
    pool = small(pools)
    store = pool.store("race")
    store.put(b"key", b"")
    changes = store.changes()
    fuse, what = 0, ""
    while what != "unsure":
        fuse += 1
        died = [lambda: dies_at(pool, fuse, lambda: store.put(b"key", b"anew"))]  # noqa: B023
        died[0]()
        try:
            what = changes.get(timeout=1.0 if what else 0.2).what
        except queue.Empty:
            what = ""
        assert fuse < 200


def test_a_handle_that_was_opened_before_and_a_forked_child_note_too(pools: Any) -> None:
    pool = small(pools)
    store = pool.store("race")
    ready, watched = pool.event("ready"), pool.event("watched")

    def writes() -> None:
        store.put(b"before", b"")
        ready.set()
        assert watched.wait(PATIENCE_S)
        store.put(b"after", b"")

    def reads() -> list[Any]:
        assert ready.wait(PATIENCE_S)
        changes = store.changes()
        watched.set()
        return list(changes.get(timeout=PATIENCE_S))

    assert gather(reads, writes)[0] == [b"after", "put"]


def test_a_dropped_store_and_one_made_anew(pools: Any) -> None:
    pool = small(pools)
    store = pool.store("race")
    changes = store.changes()
    store.put(b"key", b"")
    pool.drop("default")
    with pytest.raises(limpet.StoreDropped):
        changes.get(timeout=PATIENCE_S)
    anew = pool.store("race")
    anew.put(b"key", b"")
    changes = anew.changes()
    anew.put(b"key", b"")
    assert all_of(changes) == [(b"key", "put")]
    pool.drop("default")
    nothing_leaked(pool)


def test_a_lost_node_is_told_and_stops_no_writer(pools: Any) -> None:
    pool = small(pools, nodes=2)
    store = pool.store("race")
    changes = store.changes()
    keys = [b"%d" % number for number in range(40)]
    pool.fail_node(0)
    with pytest.raises(limpet.NodeFailed):
        changes.get(timeout=PATIENCE_S)
    written: list[bytes] = []
    for key in keys:
        try:
            store.put(key, b"")
            written.append(key)
        except limpet.NodeFailed:
            continue
    assert written
    with pytest.raises(limpet.NodeFailed):
        store.changes()
    pool.replace_node(0)
    changes = store.changes()
    store.put(written[0], b"")
    assert all_of(changes) == [(written[0], "put")]


def test_a_mapping_tells_its_keys(pools: Any) -> None:
    mapping = small(pools).dict("d")
    changes = mapping.changes()
    mapping["a", 1] = 2
    mapping.update_with(("a", 1), lambda value: value + 1)
    del mapping["a", 1]
    assert all_of(changes) == [(("a", 1), "put"), (("a", 1), "put"), (("a", 1), "deleted")]


def kinds() -> Iterable[str]:
    from limpet.stores.registry import KINDS

    return [kind for kind in KINDS if kind not in WATCHED]


def test_other_kinds_say_that_they_cannot(pools: Any) -> None:
    pool = pools(nodes=3)
    for kind in kinds():
        store = pool.store(kind, kind, capacity=100)
        with pytest.raises(limpet.StoreError, match="tells nobody"):
            store.changes()


@pytest.mark.parametrize("kind", WATCHED)
def test_a_handle_from_before_a_node_was_replaced_notes_its_keys(kind: str, pools: Any) -> None:
    """It has never mapped the new memory of the node that has the feed."""
    pool = small(pools, nodes=2)
    beside = limpet.open(pool.url)
    old = beside.store(kind)
    pool.fail_node(0)
    pool.replace_node(0)
    changes = pool.store(kind).changes()
    written = []
    for number in range(40):
        key = b"%d" % number
        try:
            old.put(key, b"")
        except limpet.NodeFailed:
            continue
        written.append((key, "put"))
    assert written
    assert [each for each in all_of(changes) if each in written] == written
    beside.close()


def test_a_key_that_cannot_be_read_takes_no_other_event_with_it(pools: Any) -> None:
    mapping = small(pools).dict("d")
    changes = mapping.changes()
    key_of = changes.key_of

    def picky(data: bytes) -> Any:
        if key_of(data) == "a":
            raise ZeroDivisionError
        return key_of(data)

    changes.key_of = picky
    mapping["a"] = mapping["b"] = 1
    with pytest.raises(ZeroDivisionError):
        changes.get()
    assert changes.get() == ("b", "put")


def test_other_threads_wait_while_one_looks(pools: Any) -> None:
    store = small(pools).store("race")
    changes = store.changes()
    thread = threading.Thread(target=store.put, args=(b"k", b""))
    with changes.operation():
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(PATIENCE_S)
    assert changes.get(timeout=PATIENCE_S) == (b"k", "put")


def test_a_write_that_was_cut_off_before_it_had_told_is_unsure(pools: Any) -> None:
    """By a signal handler, where Python runs its last step; then the process goes on."""
    store = small(pools).store("race")
    changes = store.changes()
    store.put(b"before", b"")
    store.client.enter()
    store.feed.open(b"cut", PUT)
    store.client.leave()
    store.put(b"after", b"")
    assert all_of(changes) == [(b"before", "put"), (b"cut", "unsure"), (b"after", "put")]


def test_a_run_that_meets_a_locked_leaf_concerns_no_key(pools: Any) -> None:
    store = small(pools).store("rtx-sherman")
    store.put_many([(b"%d" % number, b"") for number in range(10)])
    store.client.enter()
    try:
        store.trees.find(store.leaf, b"5")
        lock = store.leaf.at
        store.endpoint.store(lock, store.endpoint.load(lock) | LOCKED)
        assert store.writer.change_run([b"4", b"5"], [b"", b""], 1) == AGAIN
        assert store.writer.ended == 1
        store.endpoint.store(lock, store.endpoint.load(lock) & ~LOCKED)
    finally:
        store.client.leave()


@pytest.mark.parametrize("kind", WATCHED)
def test_a_store_that_is_dropped_before_its_feed_is_made_leaves_none(
    kind: str, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = small(pools)
    beside = limpet.open(pool.url)
    store = pool.store(kind, "s")
    make = changes_module._make_feed

    def late(store: Any) -> None:
        beside.drop("s")
        make(store)

    monkeypatch.setattr(changes_module, "_make_feed", late)
    with pytest.raises(limpet.StoreDropped):
        store.changes()
    beside.close()
    nothing_leaked(pool)
