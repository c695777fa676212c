"""Transactions whose reads are looked for again: in a leaf that has changed, or by another look-up.

The values that were read come back, which no random history of unlike values shows.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from kit.puppets import kills_at, verb_on_address
from kit.stores import once
from kit.transactions import LATER, NEW, OLD, TREE, Clients, StillPool, StillTestbed

import limpet
from limpet.shm.endpoint.slots import PIN

FILLER: Final = b"\xff" * 980
COMPILED: Final = limpet.build == "compiled"


class Bed(StillTestbed):
    """A tree with the key t, and a client that is stopped at the lock of its leaf."""

    kind = "rtx-sherman"

    def __init__(self, pools: Any) -> None:
        super().__init__(pools, 1, **TREE)
        (self.reader,) = self.puppets
        self.store.put(b"t", b"A")
        self.store.get(b"t")
        self.leaf = int(self.store.leaf.at)
        self.reader.store.get(b"t")

    def stop(self, work: Any, look: int) -> bool:
        """Have the reader run a transaction until it looks at the leaf for this time."""
        where = verb_on_address("load", self.leaf, look)
        return not self.reader.begin(lambda: self.reader.pool.transaction(work), where)


def fill(store: Any, value: bytes) -> None:
    """Put this value under one key after the other, until the pool is full."""
    for number in range(10_000):
        try:
            store.put(b"%d" % number, value)
        except limpet.StoreFull:
            return
    raise AssertionError("the pool did not become full")


@pytest.mark.parametrize("writes", [False, True])
def test_keys_are_looked_at_after_a_leaf_was_read_again(pools: Any, writes: bool) -> None:
    bed = Bed(pools)
    mine = bed.pool.store("rtx-race", name="h")
    theirs = bed.reader.pool.store("rtx-race", name="h")
    seen = []

    def both(of_tree: bytes, of_hash: bytes) -> None:
        bed.pool.transaction(
            lambda tx: (tx.put(bed.store, b"t", of_tree), tx.put(mine, b"h", of_hash))
        )

    def work(tx: Any) -> tuple[Any, Any]:
        of_tree = tx.get(bed.reader.store, b"t")
        if not seen:
            both(b"B", b"h")
        found = (of_tree, tx.get(theirs, b"h"))
        seen.append(found)
        if writes:
            tx.put(bed.reader.store, b"copy", b"".join(found))
        return found

    both(b"A", b"x")
    theirs.get(b"h")
    assert bed.stop(work, 2)
    both(b"A", b"y")
    assert bed.reader.go()
    assert bed.reader.result in [(b"A", b"x"), (b"B", b"h"), (b"A", b"y")]
    assert set(seen) <= {(b"A", b"x"), (b"B", b"h"), (b"A", b"y")}
    if writes:
        assert bed.store.get(b"copy") == b"".join(bed.reader.result)


@pytest.mark.parametrize("look", [2, 3, 4])
def test_missing_stores_are_looked_for_after_a_leaf_was_read_again(pools: Any, look: int) -> None:
    bed = Bed(pools)
    mine = bed.pool.store("rtx-sherman", name="two")
    theirs = bed.reader.pool.store("rtx-sherman", name="two")
    calls: list[int] = []

    def put(first: bytes, second: bytes, named: bytes = b"") -> None:
        def change(tx: Any) -> None:
            tx.put(bed.store, b"t", first)
            tx.put(mine, b"t", second)
            if named:
                tx["x"] = named

        bed.pool.transaction(change)

    def work(tx: Any) -> tuple[Any, Any, bool]:
        calls.append(1)
        first = tx.get(bed.reader.store, b"t")
        there = "x" in tx
        if len(calls) == 1:
            put(b"Z", b"B")
        return first, tx.get(theirs, b"t"), there

    put(b"A", b"P")
    theirs.get(b"t")
    stopped = bed.stop(work, look)
    put(b"A", b"B", b"x")
    if stopped:
        assert bed.reader.go()
    assert bed.reader.result in [(b"A", b"P", False), (b"Z", b"B", False), (b"A", b"B", True)]


def test_a_recalled_read_does_not_look_into_the_old_node(pools: Any) -> None:
    """The leaf was read anew before: its old node is used again by then, and we have no pin."""
    pool = pools(node_size="2MiB")
    store = pool.store("rtx-sherman", name="s")
    keys = [b"a%03d" % number for number in range(200)]
    store.put_many([(key, b"o" * 100) for key in keys])
    again = pools.again(pool)
    other = again.store("rtx-sherman", name="s")
    filler = again.store("race", name="filler", capacity=4000)

    def leaf(key: bytes) -> int:
        other.get(key)
        return int(other.leaf.at)

    first, beside = keys[0], keys[1]
    assert leaf(first) == leaf(beside)
    elsewhere = next(key for key in keys if leaf(key) != leaf(first))
    calls: list[int] = []

    def work(tx: Any) -> tuple[Any, Any]:
        calls.append(1)
        if len(calls) <= 4:
            found = tx.get(store, first)
            other.put(first, b"%d" % len(calls))
            return found, tx.get(store, elsewhere)
        if len(calls) == 5:
            for number in range(40):
                other.put(keys[2], b"x%d" % number)
            fill(filler, FILLER)
        return tx.get(store, beside), tx.get(store, first)

    assert pool.transaction(work) == (b"o" * 100, b"4")
    assert pool.endpoint.load(pool.client.slot + PIN) == 0


@pytest.mark.parametrize("kind", ["rtx-sherman", "rtx-race"])
def test_a_store_that_is_dropped_meanwhile_is_named(pools: Any, kind: str) -> None:
    """Its memory is used again, for words that are no locks and no addresses."""
    pool = pools(node_size="4MiB")
    kept = pool.store("rtx-sherman", name="kept")
    kept.put(b"k", b"1")
    dropped = pool.store(kind, name="dropped", capacity=5000)
    dropped.put(b"k", b"1")
    again = pools.again(pool)
    theirs, filler = again.store("rtx-sherman", name="kept"), again.store("race", capacity=5000)
    calls: list[int] = []

    def work(tx: Any) -> tuple[Any, Any]:
        found = tx.get(dropped, b"k"), tx.get(dropped, b"no key")
        if not calls:
            calls.append(1)
            again.drop("dropped")
            fill(filler, b"\1" * (60_000 if kind == "rtx-sherman" else 980))
            theirs.put(b"k", b"2")
        return found, tx.get(kept, b"k")

    with pytest.raises(limpet.StoreDropped, match="dropped"):
        pool.transaction(work)


@pytest.mark.parametrize("without", ["coherence", "a glance"])
def test_a_get_gives_its_own_value_when_all_keys_are_looked_up_again(
    pools: Any, without: str
) -> None:
    if without == "coherence":
        if not COMPILED:
            pytest.skip("the pure build opens only memory that is coherent")
        pool = pools(node_size="4MiB", coherent=False, coherent_bytes="1MiB")
    else:
        pool = pools()
    store = pool.store("rtx-race", name="h")
    other = pools.again(pool).store("rtx-race", name="h")
    if without == "a glance":
        store.glances = False
    store.put(b"a", b"value of a")
    store.put(b"b", b"value of b")

    def work(tx: Any) -> list[Any]:
        found = [tx.get(store, b"a"), tx.get(store, b"b")]
        other.put(b"a", b"x")
        other.put(b"a", b"value of a")
        found.append(tx.get(store, b"a"))
        return found

    assert pool.transaction(work) == [b"value of a", b"value of b", b"value of a"]


def test_a_key_that_is_read_often_is_looked_for_once(pools: Any) -> None:
    """In a leaf that others change all the while."""
    pool = pools()
    store = pool.store("rtx-sherman", name="s")
    store.put(b"a", b"1")
    other = pools.again(pool).store("rtx-sherman", name="s")
    spent: list[int] = []

    def work(tx: Any) -> None:
        for number in range(40):
            other.put(b"b", b"%d" % number)
            before = pool.endpoint.counters()["reads"]
            assert tx.get(store, b"a") == b"1"
            spent.append(pool.endpoint.counters()["reads"] - before)

    pool.transaction(work)
    assert len(spent) == 40
    assert max(spent[20:]) <= max(spent[:20])


@pytest.mark.parametrize("leaves", [1, 2])
def test_a_change_of_another_key_of_the_leaf_is_no_conflict(pools: Any, leaves: int) -> None:
    """Without a log, and with one."""
    clients = Clients(pools, 1)
    (actor,) = clients.puppets
    seen = []

    def work(tx: limpet.Transaction) -> None:
        seen.append(tx.get(actor.store, clients.kx))
        clients.store.put(clients.beside, b"%d" % len(seen))
        tx.put(actor.store, clients.kx, NEW)
        if leaves == 2:
            tx.put(actor.store, clients.ky, NEW)

    actor.pool.transaction(work)
    assert seen == [OLD]
    assert clients.value(clients.kx) == NEW
    clients.sound()


def test_a_client_that_is_killed_frees_nothing_that_it_has_read_long_ago(pools: Any) -> None:
    """Between its read and its commit, the leaf's node was freed, and is another leaf's since."""
    clients = Clients(pools, 0)

    def work(actor: Any) -> None:
        other = StillPool.open(clients.url).store("rtx-sherman", name="test")
        other.put(clients.kx, LATER)

        @once
        def go_on() -> None:
            node = clients.data(clients.x)
            other.put(clients.kx, NEW)
            for turn in range(300):
                other.put(clients.kz, b"%d" % turn)
                if clients.data(clients.z) == node:
                    break
            else:
                raise AssertionError("the node was not used again")
            actor.pool.endpoint.before = kills_at(verb_on_address("cas", clients.x))

        def change(tx: limpet.Transaction) -> None:
            tx.get(actor.store, clients.kx)
            go_on()
            tx.put(actor.store, clients.kx, OLD)

        actor.pool.transaction(change)

    clients.die(lambda verb, address: False, work)
    clients.sound()
    assert clients.value(clients.kx) == NEW
