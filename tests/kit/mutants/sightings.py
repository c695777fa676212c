"""Trap G9 put back: sightings of clients that count whatever they were doing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from limpet.shm.clients.membership import Membership
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import slot_address


def _overdue_for_ever(
    self: Membership, resource: object, hold: object, steadily: bool = False
) -> bool:
    since: dict[object, float] = self.__dict__.setdefault("_since", {})
    return self.now() - since.setdefault((resource, hold), self.now()) >= self.lease_s


def _progress_alone(self: Membership, slot: int) -> tuple[int, int]:
    return 0, int(self.endpoint.load(slot_address(slot) + slots.PROGRESS))


@contextlib.contextmanager
def sightings_for_ever() -> Iterator[None]:
    """A sighting is of a client and of a text, whatever operation the client is in; every one
    counts, since the first one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "overdue", _overdue_for_ever)
        patch.setattr(Membership, "activity", _progress_alone)
        yield
