"""Tables so small that the next insert of a key splits its subtable; for tests of growth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from fusee_mutants import SOURCES as FUSEE
from race_mutants import from_source

from limpet.fault.explore.sim_cluster import Stage
from limpet.fault.matrix.operations import KEY, OLD
from limpet.fault.matrix.testbed import Scene

SMALL: Final[dict[str, Any]] = {"groups": 2, "bucket_size": 1, "capacity": 1}
"""Subtables of six slots, of which a key may be in four."""
def replicated_from_source(*changes: tuple[str, str]) -> Any:
    """The class Fusee, likewise."""
    return from_source(FUSEE, "Fusee", *changes)


def fill(store: Any, key: bytes, value: bytes) -> tuple[bytes, ...]:
    """Insert other keys until an insert of this one has to split a subtable; which ones."""
    plain = old_form(store) if store.replicated else store
    others: list[bytes] = []
    while _has_room(plain, key):
        others.append(b"k%03d" % len(others))
        store.put(others[-1], value)
    return tuple(others)


def old_form(store: Any) -> Any:
    made = from_source(FUSEE[:-1], "ReplicatedGrowth")
    return made(store.pool, store.kind, store.name, store.parameters)


def _has_room(plain: Any, key: bytes) -> bool:
    plain.client.enter()
    try:
        if not plain.replicated:
            plain.index.look_up(plain.place, key)
            return not plain.place.pointer or plain.index.room(plain.place) >= 0
        plain._choose(key)
        plain._read_row(0)
        return not plain.pointer or plain._room() >= 0
    finally:
        plain.client.leave()


class Crowded(Scene):
    """An insert of KEY splits a subtable with other keys."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        self.bystanders = (*self.bystanders, *fill(self.store, KEY, OLD))


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Have the explorer's stages be tables in which an insert of c splits a subtable."""
    prepare = Stage._prepare

    def prepared(stage: Stage) -> None:
        prepare(stage)
        fill(stage.store, b"c", b"")
        stage.image = stage.founder.image()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "_prepare", prepared)
        yield
