"""The location cache of SWARM-KV (swarm.txt sections 5.2 and 7.1): where a key's register is.

With it, what the client last had in its words of the metadata array, so that it can write without
looking. An entry is right or useless: a register is known by its ident.

Bounded: of `SAMPLE` entries in turn the one that was used least makes room, and what they count
fades; an approximation of least frequently used.
"""

from __future__ import annotations

from array import array
from typing import Final

from limpet.stores.swarm.fields import FIXED

NOWHERE: Final = -1
SAMPLE: Final = 8


class LocationCache:
    """The places of up to `size` keys of a store with that many replicas."""

    def __init__(self, size: int, replicas: int) -> None:
        self.size = size
        self.row = FIXED + replicas
        self.forget()

    def forget(self) -> None:
        """Know nothing."""
        self.places: dict[bytes, int] = {}
        self.keys: list[bytes | None] = []
        self.words = array("Q", bytes(8 * self.row * max(1, self.size)))
        self.free: list[int] = []
        self.turn = 0

    def find(self, key: bytes) -> int:
        """Where the key's entry begins in `words`, or NOWHERE."""
        place = self.places.get(key)
        if place is None:
            return NOWHERE
        at = place * self.row
        self.words[at + 3] += 1
        return at

    def add(self, key: bytes) -> int:
        """An entry for the key, to be filled in, or NOWHERE if none is kept."""
        if not self.size:
            return NOWHERE
        self.drop(key)
        if self.free:
            place = self.free.pop()
            self.keys[place] = key
        elif len(self.keys) < self.size:
            place = len(self.keys)
            self.keys.append(key)
        else:
            place = self._evict()
            self.keys[place] = key
        self.places[key] = place
        at = place * self.row
        for index in range(self.row):
            self.words[at + index] = 0
        return at

    def drop(self, key: bytes) -> None:
        """Forget the key."""
        place = self.places.pop(key, None)
        if place is not None:
            self.keys[place] = None
            self.free.append(place)

    def _evict(self) -> int:
        """Make room: the place of a key that is no more."""
        least, found = -1, 0
        for _ in range(min(SAMPLE, self.size)):
            self.turn = self.turn + 1 if self.turn + 1 < self.size else 0
            uses = self.words[self.turn * self.row + 3]
            self.words[self.turn * self.row + 3] = uses >> 1
            if least < 0 or uses < least:
                least, found = uses, self.turn
        key = self.keys[found]
        assert key is not None  # nothing is free when there is no room
        del self.places[key]
        return found
