"""The nodes above leaves, as a client has met them: a wrong route misleads no write."""

from __future__ import annotations

from typing import Any

import pytest
from kit.mutants.rtx import UNCHANGED, Mutant, in_force
from kit.mutants.steps import require_caught
from kit.mutants.uncompiled import Change

KEYS = [b"key %05d" % number for number in range(0, 3000, 3)]
MORE = [b"key %05d" % number for number in range(1, 3000, 3)]
VALUE = b"v" * 40


def tree_of(pool: Any) -> Any:
    return pool.store("rtx-sherman", name="s", node_size=1024, value_size=64, key_size=32)


def fill(store: Any, keys: list[bytes]) -> None:
    for key in keys:
        store.put(key, VALUE)


def levels(store: Any, key: bytes) -> list[int]:
    """The objects on the way from the root to a key's leaf."""
    trees, found = store.trees, []
    at = trees.roots[0]
    leaf = trees.blank()
    with store.client:
        while True:
            assert trees.read(leaf, at, 0)
            found.append(at)
            if leaf.page.level == 0:
                return found
            at = leaf.page.child(key)


WRONG = {
    "the root": lambda way, other: way[0],
    "another node of the level": lambda way, other: other[-2],
    "a leaf": lambda way, other: other[-1],
    "a node with no data": lambda way, other: way[0] + 16 * 5000,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_node_above_leaves_is_found_out(pools: Any, wrong: str) -> None:
    store = tree_of(pools(node_size="16MiB"))
    fill(store, KEYS)
    way, other = levels(store, KEYS[0]), levels(store, KEYS[-1])
    assert len(way) > 2
    assert way[-2] != other[-2]
    parents = store.trees.parents[0]
    at = WRONG[wrong](way, other)
    for key in MORE:
        parents.note_leaf(key, at)
        store.insert(key, VALUE)
    assert [key for key, _ in store.scan()] == sorted(KEYS + MORE)
    store.check()


def test_a_node_above_leaves_that_is_not_looked_at_is_found_out(pools: Any) -> None:
    def goes_where_it_was(inner: Any) -> Any:
        """The node that was noted is taken for the one above the key's leaf."""

        def run(self: Any, key: bytes, level: int) -> Any:
            known = self.trees.parents[self.tree].find(key)
            leaf = self._read(known)
            return leaf if leaf.page.level == level else inner(self, key, level)

        return run

    def work(pools: Any) -> None:
        pool = pools(node_size="16MiB")
        store, other = tree_of(pool), tree_of(pools.again(pool))
        fill(store, KEYS[::2])
        fill(other, KEYS[1::2])
        fill(store, MORE)
        store.check()
        assert [key for key, _ in store.scan()] == sorted(KEYS + MORE)

    unseen = Mutant(
        "node-above-leaves-is-not-looked-at",
        (Change("sherman/write_set", "WriteSet._inner", goes_where_it_was),),
    )
    require_caught(in_force, UNCHANGED, unseen, work, pools)


def test_a_node_that_was_split_stays_noted(pools: Any) -> None:
    """The client that has met it goes by it, and by its new sibling, without a way by the root."""
    pool = pools(node_size="16MiB")
    store, other = tree_of(pool), tree_of(pools.again(pool))
    fill(store, KEYS)
    parents = store.trees.parents[0]
    noted = {parents.find(key) for key in KEYS} - {store.trees.roots[0]}
    assert noted
    fill(other, MORE)
    fill(store, [key + b"+" for key in KEYS])
    assert noted < {parents.find(key) for key in KEYS}


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
def test_nodes_above_leaves_that_another_client_merged(pools: Any) -> None:
    pool = pools(node_size="16MiB")
    store, other = tree_of(pool), tree_of(pools.again(pool))
    fill(store, KEYS)
    for key in KEYS[10:]:
        other.delete(key)
    fill(other, [b"a" + key for key in KEYS])
    fill(store, MORE)
    assert [key for key, _ in store.scan()] == sorted(
        [*KEYS[:10], *MORE, *(b"a" + key for key in KEYS)]
    )
    store.check()
    for key in MORE:
        store.delete(key)
    other.check()
