"""Trees of several nodes: scenes of the crash matrix, and clients that stop or die in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kit.puppets import Puppet, PuppetPool, Where, dies_before
from limpet.fault.matrix.operations import KEY, NEW, OLD, demand
from limpet.fault.matrix.testbed import StoreTestbed, look_away
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.sherman.in_place_check import InPlaceCheck
from limpet.stores.sherman.in_place_trees import InPlaceTrees
from limpet.stores.sherman.layout import SLOTS
from limpet.stores.transactions.layout import LOCKED, OBJECT_SIZE

KIND: Final = "rtx-sherman"
VALUE: Final = b"v" * 40


def nodes(store: Any) -> int:
    """How many nodes the tree has."""
    if isinstance(store.trees, InPlaceTrees):
        return sum(1 for _ in InPlaceCheck(store)._nodes(0))
    raw = store.endpoint.read(int(store.trees.roots[0]), OBJECT_SIZE * store.parameters.objects)
    pointers = np.frombuffer(raw, dtype="<u8")[POINTER // 8 :: OBJECT_SIZE // 8]
    return sum(not is_vacant(pointer) for pointer in pointers.tolist())


class TreeScene(StoreTestbed):
    """A tree of so many nodes, the last leaf of which has no room for KEY."""

    count = 1

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        while nodes(self.store) < self.count or self.has_room():
            self.bystanders = (*self.bystanders, b"k%03d" % len(self.bystanders))
            self.store.put(self.bystanders[-1], OLD)
        demand(nodes(self.store) == self.count, "the tree was split too early")

    def has_room(self) -> bool:
        """Whether KEY fits the last leaf."""
        self.store.get(KEY)
        return bool(self.store.leaf.page.fits(KEY, len(NEW)))


class RootSplit(TreeScene):
    """One leaf, which is full."""


class LeafSplit(TreeScene):
    """A root with leaves, the last of which is full."""

    count = 4


class Merge(StoreTestbed):
    """Two leaves under a root: KEY is alone in the second."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        self.store.put(KEY, OLD)
        number = 0
        while nodes(self.store) == 1:
            self.store.put(b"a%03d" % number, OLD)
            number += 1
        for key in [key for key, _ in self.store.scan(b"a", b"key") if key > b"a000"]:
            if nodes(self.store) == 3 and self.leaf_of(KEY) == self.leaf_of(key):
                self.store.delete(key)
        self.bystanders = tuple(key for key in self.store if key != KEY)
        for key in self.bystanders:
            self.store.put(key, OLD)

    def leaf_of(self, key: bytes) -> bytes:
        """Low fence of the leaf with a key."""
        self.store.get(key)
        return bytes(self.store.leaf.page.low())


class Tree:
    """A store in a new pool; clients of it that stop, or die, where they are told to."""

    def __init__(self, pools: Any, *, nodes: int = 1, size: str = "2MiB", **given: Any) -> None:
        self.pools = pools
        self.pool = pools(nodes=nodes, node_size=size)
        self.store = self.pool.store(KIND, name="test", **given)
        self.roots = [int(root) for root in self.store.trees.roots]

    def client(self) -> Puppet:
        return Puppet(self.pools, self.pool.url, KIND)

    def key_of(self, tree: int) -> bytes:
        """A key that is in that tree."""
        tree_of = self.store.trees.tree_of
        return next(key for key in (b"k%d" % n for n in range(1000)) if tree_of(key) == tree)

    def keys_of_all(self) -> list[bytes]:
        """A key of each tree; they have the value `old`."""
        keys = [self.key_of(tree) for tree in range(len(self.roots))]
        for key in keys:
            self.store.put(key, b"old")
        return keys

    def die(self, where: Where, work: Callable[[Any], object], warm: bytes) -> None:
        """A client that has read a key works, and dies just before that verb."""
        door = self.pools.keep(PuppetPool.open(self.pool.url))
        remotely_fenced = door.store(KIND, name="test")

        def prepare() -> None:
            look_away(door)
            remotely_fenced.get(warm)

        dies_before(door, where, lambda: work(remotely_fenced), prepare)
        door.close()

    def levels(self) -> int:
        """How many levels there are above the leaves."""
        self.store.client.enter()
        try:
            self.store.trees.read(self.store.leaf, self.roots[0], 0)
            return int(self.store.leaf.page.level)
        finally:
            self.store.client.leave()

    def fill(self) -> list[bytes]:
        """Put keys, in descending order, until the only leaf is split, in its middle; they, in
        order."""
        keys: list[bytes] = []
        while not self.levels():
            keys.append(b"%06d" % (1000 - len(keys)))
            self.store.put(keys[-1], VALUE)
        return keys[::-1]

    def leaf(self, key: bytes) -> int:
        """The object of the leaf that a key is in; `store.leaf.page` is a copy of its node."""
        self.store.client.enter()
        try:
            self.store.trees.find(self.store.leaf, key)
            return int(self.store.leaf.at)
        finally:
            self.store.client.leave()

    def room(self, key: bytes) -> int:
        """Bytes that are free in the leaf that a key is in."""
        self.leaf(key)
        return int(self.store.leaf.page.heap) - 8 * (SLOTS + int(self.store.leaf.page.count))

    def leaves(self, keys: list[bytes]) -> list[list[bytes]]:
        """The keys, by leaves."""
        found: dict[int, list[bytes]] = {}
        for key in keys:
            found.setdefault(self.leaf(key), []).append(key)
        return list(found.values())

    def is_locked(self, tree: int) -> bool:
        """Whether the root of a tree is locked."""
        return bool(self.store.endpoint.load(self.roots[tree]) & LOCKED)
