"""Scenes of the crash matrix in which an operation changes several nodes of a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpet.fault.operations import KEY, NEW, OLD, demand
from limpet.fault.scene import Scene
from limpet.stores.inplace.survey import InPlaceSurvey
from limpet.stores.inplace.table import InPlace
from limpet.stores.rtx.fields import OBJECT_SIZE, POINTER
from limpet.stores.rtx.lllock import is_vacant


def nodes(store: Any) -> int:
    """How many nodes the tree has."""
    if isinstance(store, InPlace):
        return sum(1 for _ in InPlaceSurvey(store)._nodes(0))
    raw = store.endpoint.read(int(store.roots[0]), OBJECT_SIZE * store.parameters.objects)
    pointers = np.frombuffer(raw, dtype="<u8")[POINTER // 8 :: OBJECT_SIZE // 8]
    return sum(not is_vacant(pointer) for pointer in pointers.tolist())


class TreeScene(Scene):
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
        return bool(self.store.page.fits(KEY, len(NEW)))


class RootSplit(TreeScene):
    """One leaf, which is full."""


class LeafSplit(TreeScene):
    """A root with leaves, the last of which is full."""

    count = 4


class Merge(Scene):
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
        return bytes(self.store.page.low())
