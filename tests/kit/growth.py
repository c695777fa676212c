"""Tables so small that the next insert of a key splits its subtable; for tests of growth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kit.mutants.fusee import SOURCES as FUSEE
from kit.mutants.race import GROWING as SOURCES
from kit.mutants.source import from_source
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.matrix.operations import KEY, OLD
from limpet.fault.matrix.testbed import StoreTestbed

SMALL: Final[dict[str, Any]] = {"groups": 2, "bucket_size": 1, "capacity": 1}
"""Subtables of six slots, of which a key may be in four."""
RTX_SOURCES: Final = (*SOURCES, "stores/rtx/hash_slots.py", "stores/rtx/race.py")
DTX_SOURCES: Final = (*SOURCES, "stores/baselines/dtx/race.py")


def growing_from_source(*changes: tuple[str, str]) -> Any:
    """The class Growing of the store's source with each text replaced, uncompiled."""
    return from_source(SOURCES, "Growing", *changes)


def rtx_growing_from_source(*changes: tuple[str, str]) -> Any:
    """The class RtxGrowing, likewise."""
    return from_source(RTX_SOURCES, "RtxGrowing", *changes)


def logged_growing_from_source(*changes: tuple[str, str]) -> Any:
    """The class LoggedGrowing, likewise."""
    return from_source(DTX_SOURCES, "LoggedGrowing", *changes)


def replicated_from_source(*changes: tuple[str, str]) -> Any:
    """The class Fusee, likewise."""
    return from_source(FUSEE, "Fusee", *changes)


def fill(store: Any, key: bytes, value: bytes) -> tuple[bytes, ...]:
    """Insert other keys until an insert of this one has to split a subtable; which ones."""
    made = (
        from_source(FUSEE[:-1], "ReplicatedGrowth") if store.replicated else growing_from_source()
    )
    plain = made(store.pool, store.kind, store.name, store.parameters)
    others: list[bytes] = []
    while _has_room(plain, key):
        others.append(b"k%03d" % len(others))
        store.put(others[-1], value)
    return tuple(others)


def _has_room(plain: Any, key: bytes) -> bool:
    plain.client.enter()
    try:
        plain._choose(key)
        plain._read_row(0)
        return not plain.pointer or plain._room() >= 0
    finally:
        plain.client.leave()


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
