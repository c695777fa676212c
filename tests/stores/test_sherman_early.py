"""Leaves that are locked before they are read (rTX section 4.5, Opt2)."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.rtx import UNCHANGED, Mutant, in_force
from kit.mutants.steps import require_caught
from kit.mutants.uncompiled import Change
from kit.puppets import Puppet, verb_on_address
from kit.stores import sound
from kit.trees import VALUE, Tree

import limpet
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.core.status import AGAIN, ATTEMPTS_PER_CHECK, PUT
from limpet.stores.transactions.layout import LOCKED

COMPILED: Final = BUILD == "compiled"
STEPS: Final = 300
LEASE: Final = {"drift_us": 0, "each_us": 20}
"""Others take it to be over while its owner stands still."""


def cost(store: Any, work: Callable[[], object]) -> int:
    before = store.stats()["round_trips"]
    work()
    return int(store.stats()["round_trips"] - before)


@pytest.mark.parametrize("early", [True, False])
def test_a_round_trip_is_saved_where_a_key_was_met(pools: Any, early: bool) -> None:
    tree = Tree(pools, opt2=early)
    keys = tree.fill()
    store = tree.client().store
    store.trees.sure = 0  # or it would guess pointers, which saves that round trip, too
    store.get(keys[0])  # and so it knows where all of the leaf are
    assert len({tree.leaf(key) for key in keys}) == 2
    assert tree.leaf(keys[0]) == tree.leaf(keys[3])
    store.allocator.replenish_all(0, [1024] * 8)
    met = 3 if early else 4
    assert cost(store, lambda: store.update(keys[0], VALUE)) == met
    assert cost(store, lambda: store.put(keys[1], VALUE)) == met
    assert cost(store, lambda: store.delete(keys[2])) == met
    assert cost(store, lambda: store.update(keys[-1], VALUE)) == 4
    assert cost(store, lambda: store.insert(keys[2], VALUE)) == 4
    sound(tree.store)


def test_no_leaf_is_locked_early_where_the_dead_may_still_write(pools: Any) -> None:
    """In a pool of several hosts, what is to be installed has to be whole before the lock."""
    for several, trips in ((False, 3), (True, 4)):
        store = pools(nodes=1, node_size="2MiB", multi_host=several).store("rtx-sherman")
        store.trees.sure = 0
        store.put(b"k", VALUE)
        store.get(b"k")
        store.allocator.replenish_all(0, [1024] * 8)
        assert cost(store, lambda store=store: store.update(b"k", VALUE)) == trips


def test_a_value_that_goes_to_an_extent_or_comes_from_one(pools: Any) -> None:
    tree = Tree(pools, value_size=40)
    keys = tree.fill()
    for value in (bytes(500), VALUE, bytes(600), bytes(600), VALUE):
        tree.store.update(keys[0], value)
        assert tree.store.get(keys[0]) == value
        sound(tree.store)


@pytest.mark.exhaustive_in_pure("fills a pool")
def test_a_key_that_is_gone_is_missing_in_a_full_pool_too(pools: Any) -> None:
    tree = Tree(pools, size="512KiB")
    keys = tree.fill()
    met = tree.client().store
    gone = keys[1:6]
    for key in gone:
        met.get(key)
    for key in gone:
        tree.store.delete(key)

    def fill_up() -> None:
        for number in itertools.count():
            tree.store.put(b"%07d" % number, VALUE)

    with pytest.raises(limpet.StoreFull):
        fill_up()
    for key in gone:
        with pytest.raises(KeyError):
            met.update(key, VALUE)
        with pytest.raises(KeyError):
            met.delete(key)
    sound(tree.store)


def test_an_inner_node_is_not_locked_for_a_missing_key_again(pools: Any) -> None:
    """The key was met in the root when that was a leaf; it is the fence between two leaves now."""
    tree = Tree(pools)
    slow = tree.client().store
    keys: list[bytes] = []
    while not tree.levels():
        keys.append(b"%06d" % len(keys))
        tree.store.put(keys[-1], VALUE)
        if not tree.levels():
            slow.get(keys[-1])
    fence = next(key for key in keys if tree.leaf(key) and tree.store.leaf.page.low() == key)
    assert fence in keys[1:]
    tree.store.delete(fence)
    for _ in range(2):
        with pytest.raises(KeyError):
            slow.update(fence, VALUE)
    before = slow.stats()["bytes_written"]
    with pytest.raises(KeyError):
        slow.update(fence, VALUE)
    assert slow.stats()["bytes_written"] == before
    sound(tree.store)


# ---- a leaf that is locked already --------------------------------------------------------------


def meets_a_lock(pools: Any) -> None:
    """An owner stands still with the leaf's lock. Another client sees the lock, after its first
    attempt reads and writes no node, and knows what it waits for: when the lease is over it repairs
    that lock."""
    tree = Tree(pools, **LEASE)
    keys = tree.fill()
    at, store = tree.leaf(keys[1]), tree.store
    slow = tree.client()
    for client in (slow.store, store, store):
        client.get(keys[1])
    store.get(keys[-1])  # another leaf is the one that it has met last

    def locked(verb: str, address: int) -> bool:
        return bool(store.endpoint.load(at) & LOCKED)

    assert not slow.begin(functools.partial(slow.store.update, keys[1], VALUE), locked)
    before = store.stats()
    with store.client:
        assert store.writer.change_early(keys[1], VALUE, PUT, 1) == AGAIN
    after = store.stats()
    assert after["bytes_written"] == before["bytes_written"]
    assert after["bytes_read"] - before["bytes_read"] == 16
    time.sleep(0.01)
    store.repair.await_holder(store.leaf.at, ATTEMPTS_PER_CHECK, True)
    assert not store.endpoint.load(at) & LOCKED
    store.put(keys[1], b"other")
    assert slow.go()
    assert store.get(keys[1]) in (b"other", VALUE)
    sound(store)


def test_a_client_that_meets_a_lock_reads_no_node_and_repairs_it_later(pools: Any) -> None:
    meets_a_lock(pools)


def test_a_client_that_does_not_know_what_it_waits_for_is_found_out(pools: Any) -> None:
    def forgets_the_leaf(change: Any) -> Any:
        def run(self: Any, key: bytes, value: bytes, mode: int, attempt: int) -> Any:
            before, outcome = self.leaf.at, change(self, key, value, mode, attempt)
            if outcome == AGAIN:
                self.leaf.at = before
            return outcome

        return run

    forgetful = Mutant(
        "leaf-that-is-locked-is-not-noted",
        (Change("sherman/leaf_writer", "LeafWriter.change_early", forgets_the_leaf),),
    )
    require_caught(in_force, UNCHANGED, forgetful, meets_a_lock, pools)


# ---- a leaf that the key has left ---------------------------------------------------------------


def stops_with(tree: Tree, key: bytes, at: int) -> Puppet:
    """A client that stands still with the lock of a key's leaf, which is the object `at`."""
    client = tree.client()
    client.store.get(key)
    client.store.get(key)

    def locked(verb: str, address: int) -> bool:
        return is_locked(tree, at)

    assert not client.begin(functools.partial(client.store.update, key, VALUE), locked)
    return client


def is_locked(tree: Tree, at: int) -> bool:
    return bool(tree.store.endpoint.load(at) & LOCKED)


def a_split_beats_it(pools: Any) -> None:
    """A write loses the leaf's lock to a client that splits the leaf. Then another client stands
    still with that lock, but the key is in the new leaf: the write does not wait for a lease."""
    tree = Tree(pools)
    keys = tree.fill()
    left, slow = tree.leaf(keys[1]), tree.client()
    slow.store.get(keys[1])
    slow.store.get(keys[1])
    update = functools.partial(slow.store.update, keys[1], b"new")
    assert not slow.begin(update, verb_on_address("cas", left))
    _in_another_leaf(tree, keys)
    stopped = stops_with(tree, keys[0], left)
    before = slow.store.stats()["retries"]
    assert slow.go()
    assert 1 < slow.store.stats()["retries"] - before < ATTEMPTS_PER_CHECK
    assert is_locked(tree, left)
    assert tree.store.get(keys[1]) == b"new"
    assert stopped.go()
    sound(tree.store)


def both_leaves_are_locked(pools: Any) -> None:
    """The key was deleted, and its leaf split: it belongs in the new leaf, whose lock's owner
    stands still, as does that of the old one's. A put repairs the lock that is in its way, and that
    only."""
    tree = Tree(pools, **LEASE)
    keys = tree.fill()
    left, late = tree.leaf(keys[1]), tree.client().store
    late.get(keys[1])
    late.get(keys[1])
    tree.store.delete(keys[1])
    _in_another_leaf(tree, keys)
    right = tree.leaf(keys[1])
    other = next(key for key, _ in tree.store.scan(keys[1]) if tree.leaf(key) == right)
    stopped = [stops_with(tree, keys[0], left), stops_with(tree, other, right)]
    late.put(keys[1], b"new")
    assert late.repair.repairs == 1
    assert is_locked(tree, left)
    assert tree.store.get(keys[1]) == b"new"
    for client in stopped:
        assert client.go()
    sound(tree.store)


LEFT: Final = [a_split_beats_it, both_leaves_are_locked]


@pytest.mark.parametrize("scene", LEFT)
def test_a_write_does_not_wait_for_a_leaf_that_its_key_has_left(pools: Any, scene: Any) -> None:
    scene(pools)


@pytest.mark.parametrize("scene", LEFT)
def test_a_write_that_goes_by_its_hint_alone_is_found_out(pools: Any, scene: Any) -> None:
    def believes_the_hint(change: Any) -> Any:
        def run(self: Any, key: bytes, value: bytes, mode: int, attempt: int) -> Any:
            return change(self, key, value, mode, min(attempt, 1))

        return run

    believer = Mutant(
        "leaf-that-is-locked-is-never-looked-up-again",
        (Change("sherman/leaf_writer", "LeafWriter.change_early", believes_the_hint),),
    )
    require_caught(in_force, UNCHANGED, believer, scene, pools)


# ---- what is found once it is locked ------------------------------------------------------------


def _nothing(tree: Tree, keys: list[bytes]) -> None:
    pass


def _deleted(tree: Tree, keys: list[bytes]) -> None:
    tree.store.delete(keys[1])


def _in_another_leaf(tree: Tree, keys: list[bytes]) -> None:
    before = tree.leaf(keys[1])
    for number in range(200):
        if tree.leaf(keys[1]) != before:
            return
        tree.store.put(keys[0] + b"%03d" % number, VALUE)
    raise AssertionError("the leaf was not split")


def _full(tree: Tree, keys: list[bytes]) -> None:
    for number in range(200):
        if tree.room(keys[1]) < len(LARGE) - len(VALUE):
            return
        tree.store.put(keys[0] + b"%03d" % number, VALUE)
    raise AssertionError("the leaf was not filled")


def _in_no_leaf(tree: Tree, keys: list[bytes]) -> None:
    for key in keys:
        tree.store.delete(key)
    assert tree.levels() == 0


SMALL: Final = b"new"
LARGE: Final = bytes(120)
CASES: Final = {
    "update": (_nothing, "update", SMALL),
    "delete": (_nothing, "delete", None),
    "update that splits the leaf": (_full, "update", LARGE),
    "update of a key that was deleted": (_deleted, "update", SMALL),
    "put of a key that was deleted": (_deleted, "put", SMALL),
    "put of a key that is in another leaf": (_in_another_leaf, "put", SMALL),
    "delete of a key that is in another leaf": (_in_another_leaf, "delete", None),
    "put of a key whose leaf was merged": (_in_no_leaf, "put", SMALL),
}


@pytest.mark.either_build("every step of the same lines")
@pytest.mark.exhaustive("every step", quick=["update-True"])
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_who_stands_still_is_worked_around(pools: Any, case: str, interrupted: bool) -> None:
    """At each step. Others read the key, and write it; who stood still goes on, or is
    interrupted."""
    before, operation, value = CASES[case]
    for step in range(0, STEPS, 1 if COMPILED else 9):
        tree = Tree(pools, key_size=16, value_size=len(LARGE), **LEASE)
        keys = tree.fill()
        slow = tree.client()
        slow.store.get(keys[1])
        slow.store.get(keys[1])
        before(tree, keys)
        was = tree.store.get(keys[1])
        left = [step]

        def reached(verb: str, address: int, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        given = (keys[1],) if value is None else (keys[1], value)
        done = slow.begin(functools.partial(getattr(slow.store, operation), *given), reached)
        possible = (was, value) if was is not None or operation == "put" else (None,)
        assert tree.store.get(keys[1]) in possible
        tree.store.put(keys[1], b"other")
        if not done and interrupted:
            slow.abandon()
        elif not done:
            assert slow.go()
        assert slow.result in (None, KeyError)
        assert tree.store.get(keys[1]) in (b"other", value)
        assert tree.store.get(keys[1]) == slow.store.get(keys[1])
        assert tree.store.get(keys[0]) == tree.client().store.get(keys[0])
        sound(tree.store)
        pools.destroy()
        if step and done:
            break
    assert step > (20 if COMPILED else 2)
