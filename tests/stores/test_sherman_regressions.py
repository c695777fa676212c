"""Old faults of the tree store and its transactions, step by step: clients that are late,
interrupted or killed; merges; routes and walks that are out of date; lost memory nodes.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.processes import children
from kit.puppets import PuppetPool, verb_on_address
from kit.stores import sound
from kit.trees import KIND, VALUE, Tree

import limpet
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.sherman.layout import SHAPE

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED: Final = BUILD == "compiled"
PATIENCE_S: Final = 60
"""Seconds; a client that takes longer hangs."""


def outcome(work: Callable[[], object]) -> object:
    """Its result, or the class of the LimpetError that it raised."""
    try:
        return work()
    except limpet.LimpetError as error:
        return type(error)


# ---- a lock without a log -----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, POINTER])
def test_who_recovers_late_undoes_no_later_update(pools: Any, offset: int) -> None:
    tree = Tree(pools)
    store, root = tree.store, tree.roots[0]
    store.put(b"k", b"old")
    late = tree.client()
    tree.die(verb_on_address("cas", root + POINTER), lambda kv: kv.put(b"k", b"dead's"), b"k")
    assert not late.begin(late.pool.recover, verb_on_address("load", root + offset))
    tree.pool.recover()
    for value in (b"1", b"2", b"3"):
        store.put(b"k", value)
    assert late.go()
    assert store.get(b"k") == b"3"
    sound(store)


def test_who_is_interrupted_and_goes_on_late_undoes_no_later_update(pools: Any) -> None:
    tree = Tree(pools)
    store, at = tree.store, tree.roots[0] + POINTER
    store.put(b"k", b"old")
    slow = tree.client()
    slow.store.get(b"k")
    goes_on, interrupted = slow.pool.endpoint.before, []

    def interrupt(verb: str, address: int) -> None:
        if (verb, address) == ("cas", at) and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        goes_on(verb, address)

    def put() -> None:
        with pytest.raises(KeyboardInterrupt):
            slow.store.put(b"k", b"interrupted's")

    slow.pool.endpoint.before = interrupt
    # It settles what it has locked.
    assert not slow.begin(put, lambda verb, address: bool(interrupted) and address == at)
    for value in (b"1", b"2", b"3"):
        store.put(b"k", value)
    assert slow.go()
    assert store.get(b"k") == b"3"
    sound(store)


def test_a_damaged_node_does_not_keep_its_client_from_being_recovered(pools: Any) -> None:
    tree = Tree(pools, value_size=16)
    store, root = tree.store, tree.roots[0]
    store.put(b"k", b"old")
    tree.die(verb_on_address("cas", root), lambda kv: kv.put(b"k", bytes(100)), b"k")
    node = store.endpoint.load(root + POINTER) & ADDRESS_MASK
    store.endpoint.store(node + 8 * SHAPE, 0xFF_FFFF_FFFF)
    assert len(tree.pool.recover()["clients"]) == 1
    assert tree.pool.recover()["clients"] == []
    with pytest.raises(limpet.StoreCorrupt, match="damaged"):
        store.get(b"k")
    tree.pool.store("race", name="another").put(b"k", b"v")


# ---- merges -------------------------------------------------------------------------------------


def test_an_empty_leaf_with_a_long_fence_is_not_merged_into_a_full_one(pools: Any) -> None:
    """The fences take room as well, and the long one was left out of account."""
    tree = Tree(pools)
    store = tree.store
    model = {b"a%03d" % n: VALUE for n in range(60)}
    model |= {b"b" * 60 + b"%04d" % n: b"" for n in range(40)}
    for key in sorted(model):
        store.put(key, model[key])
    # The last leaf that begins with a short key ends with a long one.
    emptied = next(
        keys for keys in reversed(tree.leaves(sorted(model))) if keys[0].startswith(b"a")
    )
    full = max(key for key in model if key < emptied[0])
    number = 0
    while (room := tree.room(full)) > 8 + len(full) + 2:
        key = full + b"%02d" % number
        model[key] = bytes(min(40, room - 8 - len(key)))
        store.put(key, model[key])
        number += 1
    for key in emptied:
        store.delete(key)
        del model[key]
    assert dict(store.items()) == model
    sound(store)


def test_leaves_of_keys_of_very_different_lengths_are_merged(pools: Any) -> None:
    tree = Tree(pools, size="8MiB", key_size=255, value_size=0)
    chance = random.Random(1)
    keys = set()
    for _ in range(1500 if COMPILED else 300):
        tail = bytes([chance.randrange(256)]) * chance.choice((0, 3, 100, 252))
        keys.add(b"%03d" % chance.randrange(1000) + tail)
    for key in keys:
        tree.store.put(key, b"")
    for key in chance.sample(sorted(keys), len(keys)):
        tree.store.delete(key)
    assert len(tree.store) == 0
    sound(tree.store)


@pytest.mark.parametrize("many", [160, 170, 180, 184])
def test_long_key_follows_short_ones_that_fill_a_leaf(pools: Any, many: int) -> None:
    """It became the high fence of a leaf that had no room for it: StoreCorrupt."""
    tree = Tree(pools, size="8MiB", key_size=255, value_size=0)
    keys = [b"%03d" % number for number in range(many)] + [b"9" * 255]
    for key in keys:
        tree.store.put(key, b"")
    assert list(tree.store.keys()) == keys
    sound(tree.store)


def test_a_delete_ends_though_the_tree_has_shrunk_below_it(pools: Any) -> None:
    """Its merge looked for the parent of what had become the root, for ever."""
    tree = Tree(pools)
    store = tree.store
    left, right = tree.leaves(tree.fill())
    deletes = tree.client()
    deletes.store.get(left[0])
    while len(right) < 14:
        right.append(b"9%05d" % len(right))
        store.put(right[-1], VALUE)
    while len(left) > 5:
        store.delete(left.pop())
    assert tree.levels() == 1
    assert not deletes.begin(
        lambda: deletes.store.delete(left[0]), verb_on_address("load", tree.roots[0])
    )
    for key in right:
        store.delete(key)
    assert tree.levels() == 0
    with within(PATIENCE_S, "the delete"):
        assert deletes.go()
    assert list(store) == left[1:]
    sound(store)


def test_a_transaction_ends_though_a_leaf_below_its_staged_parent_is_gone(pools: Any) -> None:
    """It has split a leaf, so goes by its own copy of the parent, which leads to the leaf."""
    tree = Tree(pools)
    store = tree.store
    keys = [b"%08d" % number for number in range(120)]
    for key in keys:
        store.put(key, VALUE)
    works = tree.client()
    for key in keys:
        works.store.get(key)
    leaves = tree.leaves(keys)
    split, going, gone = leaves[1][0], leaves[4], leaves[5]
    number = 0
    while tree.room(split) >= 60:
        store.put(split + b"%02d" % number, VALUE)
        number += 1
    for key in gone[4:] + going[5:]:
        store.delete(key)
    assert tree.leaf(gone[0]) != tree.leaf(going[0])

    def work(tx: Any) -> None:
        tx.put(works.store, split + b"zz", bytes(64))
        tx.put(works.store, gone[0], b"new")

    assert not works.begin(
        lambda: works.pool.transaction(work), verb_on_address("load", tree.leaf(gone[0]))
    )
    for key in going[:5] + gone[:4]:
        store.delete(key)
    with within(PATIENCE_S, "the transaction"):
        assert works.go()
    assert (store.get(split + b"zz"), store.get(gone[0])) == (bytes(64), b"new")
    sound(store)


def test_len_counts_no_key_twice_while_leaves_are_merged(pools: Any) -> None:
    tree = Tree(pools)
    store = tree.store
    left, right = tree.leaves(tree.fill())
    for key in left[5:] + right[5:]:
        store.delete(key)
    counts = tree.client()
    counts.store.get(left[0])
    counts.store.get(right[0])
    assert not counts.begin(lambda: len(counts.store), verb_on_address("load", tree.leaf(right[0])))
    store.delete(right[4])
    assert tree.levels() == 0
    assert counts.go()
    assert counts.result <= 10
    assert len(store) == 9


def test_routes_to_leaves_that_are_gone_are_forgotten(pools: Any) -> None:
    """A leaf's object that is used again for smaller keys is a long way from the key."""
    tree = Tree(pools, size="512KiB", capacity=64, value_size=200)
    store, reads = tree.store, tree.client()
    stay = [b"b%04d" % number for number in range(200)]
    for key in stay:
        store.put(key, bytes(200))
    for key in stay:
        reads.store.get(key)
    for key in stay[1:]:
        store.delete(key)
    assert tree.levels() == 0

    def put_as_many_as_there_is_room_for() -> None:
        for number in itertools.count():
            store.put(b"a%04d" % number, bytes(200))

    with pytest.raises(limpet.StoreFull):
        put_as_many_as_there_is_room_for()
    assert tree.levels() >= 1
    loads = [0]

    def count(verb: str, address: int) -> None:
        loads[0] += verb == "load"

    most = 0
    for key in stay:
        reads.pool.endpoint.before = None
        reads.store.get(key + b"x")
        reads.pool.endpoint.before = count
        loads[0] = 0
        reads.store.get(key + b"y")  # another one, whose leaf was not noted by itself
        most = max(most, loads[0])
    assert most <= 8


# ---- a lock that outlives its log ---------------------------------------------------------------


def aborted_before_its_second_lock(tree: Tree, keys: list[bytes]) -> None:
    """A client meets the first lock of a transaction that stands still, and aborts it."""
    with within(PATIENCE_S, "the client that meets the lock"):
        tree.store.put(keys[0], b"later")
    assert tree.store.get(keys[0]) == b"later"


def test_an_interrupted_transaction_that_was_aborted_leaves_no_lock(pools: Any) -> None:
    tree = Tree(pools, nodes=2)
    keys = tree.keys_of_all()
    slow = tree.client()

    def work(tx: Any) -> None:
        for key in keys:
            tx.put(slow.store, key, b"new")

    assert not slow.begin(
        lambda: slow.pool.transaction(work), verb_on_address("cas", tree.roots[1])
    )
    aborted_before_its_second_lock(tree, keys)
    # It decides next.
    assert not slow.go(lambda verb, address: verb == "cas" and address != tree.roots[1])
    assert tree.is_locked(1)
    slow.abandon()
    assert not tree.is_locked(1)
    assert [tree.store.get(key) for key in keys] == [b"later", b"old"]
    slow.store.put(keys[1], b"later")
    sound(tree.store)


def test_a_killed_transaction_that_was_aborted_leaves_no_lock(pools: Any) -> None:
    tree = Tree(pools, nodes=2)
    keys = tree.keys_of_all()
    door = pools.keep(PuppetPool.open(tree.pool.url))
    remotely_fenced = door.store(KIND, name="test")
    first, second = verb_on_address("cas", tree.roots[1]), [False]

    def stop_and_die(verb: str, address: int) -> None:
        if first(verb, address):
            os.kill(os.getpid(), signal.SIGSTOP)
            second[0] = True
        elif second[0] and verb == "cas" and address != tree.roots[1]:
            os.kill(os.getpid(), signal.SIGKILL)

    def work(tx: Any) -> None:
        for key in keys:
            tx.put(remotely_fenced, key, b"new")

    def client() -> None:
        look_away(door)
        remotely_fenced.get(keys[0])
        door.endpoint.before = stop_and_die
        door.transaction(work)

    with children([client]) as [(pid, _)]:
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        aborted_before_its_second_lock(tree, keys)
        os.kill(pid, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert tree.is_locked(1)
    assert len(tree.pool.recover()["clients"]) == 1
    assert not tree.is_locked(1)
    assert [tree.store.get(key) for key in keys] == [b"later", b"old"]
    sound(tree.store)


# ---- lost memory nodes --------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_transaction_that_loses_a_node_as_it_installs_is_whole_on_the_others(
    pools: Any, lost: int
) -> None:
    """Node 0 has its log."""
    tree = Tree(pools, nodes=3)
    keys = tree.keys_of_all()
    works = tree.client()
    other = works.pool.store(KIND, name="other")

    def work(tx: Any) -> None:
        for key in keys:
            tx.put(works.store, key, b"new")

    assert not works.begin(
        lambda: outcome(lambda: works.pool.transaction(work)),
        verb_on_address("cas", tree.roots[lost] + POINTER),
    )
    tree.pool.fail_node(lost)
    assert works.go()
    assert works.result is None
    left = [key for node, key in enumerate(keys) if node != lost]
    with within(PATIENCE_S, "the client that reads the rest"):
        assert [tree.store.get(key) for key in left] == [b"new", b"new"]
        works.pool.transaction(lambda tx: tx.put(other, left[0], b"another store's"))
        assert [tree.store.get(key) for key in left] == [b"new", b"new"]
    with pytest.raises(limpet.NodeFailed):
        tree.store.get(keys[lost])
    for key in left:
        tree.store.put(key, b"newer")
    assert tree.pool.audit()["leaked"] == 0


def test_who_loses_an_extent_with_its_node_uses_the_others(pools: Any) -> None:
    tree = Tree(pools, nodes=2, value_size=16)
    here, there = tree.keys_of_all()
    works = tree.client()
    works.store.get(there)
    assert not works.begin(
        lambda: outcome(lambda: works.store.put(there, bytes(100))),
        verb_on_address("cas", tree.roots[1]),
    )
    tree.pool.fail_node(1)
    assert works.go()
    assert works.result is limpet.NodeFailed
    assert works.store.get(here) == b"old"
    works.store.put(here, bytes(100))
    assert tree.store.get(here) == bytes(100)
    assert tree.pool.audit()["held"] == 0


def test_who_died_with_an_extent_on_a_lost_node_is_recovered(pools: Any) -> None:
    tree = Tree(pools, nodes=2, value_size=16)
    here, there = tree.keys_of_all()
    tree.die(verb_on_address("cas", tree.roots[1]), lambda kv: kv.put(there, bytes(100)), there)
    tree.pool.fail_node(1)
    assert len(tree.pool.recover()["clients"]) == 1
    assert tree.store.get(here) == b"old"
    assert tree.pool.audit()["held"] == 0


# ---- splits in the operation that found no room ------------------------------------------------


@pytest.mark.parametrize("opt2", [False, True])
@pytest.mark.parametrize("size", [16, 100])
def test_a_value_that_outgrows_its_leaf_replaces_no_other_keys(
    pools: Any, size: int, opt2: bool
) -> None:
    """Where the key was met before, its leaf was split with the place of the key that had been
    looked for last: values of more than 16 bytes are extents, and those are always changed so."""
    store = pools().store(KIND, name="test", value_size=16, opt2=opt2)
    count = 57  # as many as a leaf has room for
    expected = {b"k%03d" % number: b"%d" % (number % 10) for number in range(count)}
    for key, value in expected.items():
        store.put(key, value)
    for key in expected:
        store.get(key)  # now it is known where it is
    for key in list(expected)[:-1]:
        expected[key] = bytes(size)
        store.put(key, expected[key])
        assert {other: store.get(other) for other in expected} == expected
    assert dict(store.items()) == expected
    sound(store)


# ---- handles ------------------------------------------------------------------------------------


def test_two_handles_of_one_store_are_one_in_a_transaction(pools: Any) -> None:
    """Each had staged nodes of its own, and extents were linked by the wrong keys."""
    tree = Tree(pools, value_size=16)
    one, two = tree.store, tree.pool.store(KIND, name="test")
    one.put(b"k", b"k's")
    one.put(b"l", b"l's value")

    def work(tx: Any) -> object:
        tx.put(one, b"k", bytes(100))
        seen = tx.get(two, b"k")
        tx.delete(two, b"k")
        tx.put(two, b"m", bytes(200))
        return seen, tx.get(one, b"k"), tx.get(one, b"m")

    assert tree.pool.transaction(work) == (bytes(100), None, bytes(200))
    assert dict(two.items()) == {b"l": b"l's value", b"m": bytes(200)}
    sound(one)
