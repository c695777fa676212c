"""The writes of a transaction to one store, by key, until its commit stages them (execution.py).

Few keys are compared one by one, and more are found by a dict: most transactions write a few. Keys
and values are in lists that the next transaction uses again. Private to one client.
"""

from __future__ import annotations

from typing import Final

from limpet.stores.rtx.layout import KEPT

FEW: Final = 8
"""So many keys are compared one by one."""
NOT_WRITTEN: Final = -1


class PendingWrites:
    """The writes of a transaction to a store: a value for each key, or None to delete it."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        """Of `count` keys; what is behind them is to be used again."""
        self.places: dict[bytes, int] | None = None
        """Where keys are in these lists, if they are more than a few."""

    def place_of(self, key: bytes) -> int:
        """Where a key is in the lists, or NOT_WRITTEN."""
        if self.places is not None:
            return self.places.get(key, NOT_WRITTEN)
        for place in range(self.count):
            other = self.keys[place]
            if other is key or other == key:
                return place
        return NOT_WRITTEN

    def write(self, key: bytes, value: bytes | None) -> None:
        """Have this be what is written for a key."""
        place = self.place_of(key) if self.count else NOT_WRITTEN
        if place >= 0:
            self.values[place] = value
        elif self.count < len(self.keys) and self.count < len(self.values):
            self.keys[self.count] = key
            self.values[self.count] = value
            self._added(key)
        else:
            # a signal handler may have raised between these two, in an earlier transaction
            del self.keys[self.count :]
            del self.values[self.count :]
            self.keys.append(key)
            self.values.append(value)
            self._added(key)

    def _added(self, key: bytes) -> None:
        if self.places is not None:
            self.places[key] = self.count
        self.count += 1
        if self.count > FEW and self.places is None:
            self.places = {}
            for place in range(self.count):
                self.places[self.keys[place]] = place

    def sort(self) -> None:
        """Put them in the order of keys, when all are written."""
        if self.count > FEW:
            pairs = sorted(zip(self.keys[: self.count], self.values[: self.count], strict=True))
            for place, (key, value) in enumerate(pairs):
                self.keys[place] = key
                self.values[place] = value
            self.places = {key: place for place, (key, _) in enumerate(pairs)}
        else:
            for last in range(1, self.count):
                place = last
                while place and self.keys[place] < self.keys[place - 1]:
                    key, value = self.keys[place], self.values[place]
                    self.keys[place] = self.keys[place - 1]
                    self.values[place] = self.values[place - 1]
                    self.keys[place - 1] = key
                    self.values[place - 1] = value
                    place -= 1

    def puts(self) -> int:
        """How many keys are written, and not deleted."""
        count = 0
        for place in range(self.count):
            count += self.values[place] is not None
        return count

    def clear(self) -> None:
        """Forget all."""
        for place in range(self.count):
            self.keys[place] = b""
            self.values[place] = None
        if self.count > KEPT:
            del self.keys[KEPT:]
            del self.values[KEPT:]
        self.places = None
        self.count = 0
