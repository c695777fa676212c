"""What known-bad variants of a store are that differ from it in the store's source only."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from race_mutants import from_source

from limpet.shm.clients.membership import Membership, slot_address
from limpet.shm.endpoint import slots
from limpet.stores import pool as stores_pool

Change = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store's source; `replace` is given the names of its modules, and replaces
    functions of their classes."""

    name: str
    changes: tuple[Change, ...] = ()
    replace: Callable[[dict[str, Any]], None] | None = None


@contextlib.contextmanager
def store_in_force(sources: Sequence[str], cls: str, mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's: `cls` of the last of these sources."""
    made = from_source(sources, cls, *mutant.changes)
    if mutant.replace is not None:
        mutant.replace(made.__init__.__globals__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores_pool, "store_class", lambda kind: made)
        yield


def _overdue_for_ever(
    self: Membership, resource: object, hold: object, steadily: bool = False
) -> bool:
    since: dict[object, float] = self.__dict__.setdefault("_since", {})
    return self.now() - since.setdefault((resource, hold), self.now()) >= self.lease_s


def _progress_alone(self: Membership, slot: int) -> int:
    return int(self.endpoint.load(slot_address(slot) + slots.PROGRESS))


@contextlib.contextmanager
def sightings_for_ever() -> Iterator[None]:
    """Trap G9: a sighting is of a client and of a text, whatever operation the client is in; every
    one counts, since the first one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "overdue", _overdue_for_ever)
        patch.setattr(Membership, "_activity", _progress_alone)
        yield


UNCHANGED = Mutant("unchanged")
"""The shipped source, run as the mutants are."""
