"""Tables so small that the next insert of a key splits its subtable; for tests of growth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.matrix.operations import KEY, OLD
from limpet.fault.matrix.testbed import StoreTestbed

SMALL: Final[dict[str, Any]] = {"groups": 2, "bucket_size": 1, "capacity": 1}
"""Subtables of six slots, of which a key may be in four."""


def fill(store: Any, key: bytes, value: bytes) -> tuple[bytes, ...]:
    """Insert other keys until an insert of this one has to split a subtable; which ones."""
    others: list[bytes] = []
    while _has_room(store, key):
        others.append(b"k%03d" % len(others))
        store.put(others[-1], value)
    return tuple(others)


def _has_room(store: Any, key: bytes) -> bool:
    store.client.enter()
    try:
        store.index.look_up(store.place, key)
        return not store.place.pointer or store.index.room(store.place) >= 0
    finally:
        store.client.leave()


class Crowded(StoreTestbed):
    """An insert of KEY splits a subtable with other keys."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        self.bystanders = (*self.bystanders, *fill(self.store, KEY, OLD))


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Have the explorer's stages be tables in which an insert of c splits a subtable."""
    prepare = SimulatedCluster._prepare

    def prepared(stage: SimulatedCluster) -> None:
        prepare(stage)
        fill(stage.store, b"c", b"")
        stage.image = stage.setup_client.image()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedCluster, "_prepare", prepared)
        yield
