"""How long a client has been seen to hold something: the evidence by which suspects are judged.

A client stands still in one hold of one resource. So a sighting belongs to a resource (a lock, a
lease, a client in an operation) together with a *hold*: a value that no other hold of this resource
has. The sighting begins anew

    - when the hold differs: the holder has changed, or has made progress
    - when this client has not looked for `gap_s`: that wait is over, and a new one begins. So a
      hold that is known by counters which wrap, or that its holder may have had twice, is judged
      within one wait only

A client that is stopped in two unrelated holds, or that by chance has a lock at each look, is never
taken for one that stands still (trap G9).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

SIGHTINGS_MAX: Final = 4096
"""Resources that are remembered; those with the oldest last look are forgotten first."""


class Sighting(NamedTuple):
    """A hold, and the times of its first and its last look, in seconds."""

    hold: object
    since_s: float
    seen_s: float


class Sightings:
    """The sightings of one client. Times are in seconds, of any clock that does not go back."""

    def __init__(self) -> None:
        self._known: dict[object, Sighting] = {}

    def lasted(
        self, resource: object, hold: object, now_s: float, gap_s: float = math.inf
    ) -> float:
        """Note that `resource` is in this hold; the seconds for which it has been seen in it."""
        known = self._known.get(resource)
        since = now_s
        if known is not None and known.hold == hold and now_s - known.seen_s <= gap_s:
            since = known.since_s
        elif known is None and len(self._known) >= SIGHTINGS_MAX:
            self._forget_half()
        self._known[resource] = Sighting(hold, since, now_s)
        return now_s - since

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()

    def _forget_half(self) -> None:
        by_age = sorted(self._known, key=lambda resource: self._known[resource].seen_s)
        for resource in by_age[: len(by_age) // 2]:
            del self._known[resource]
