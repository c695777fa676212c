"""The writes of a transaction to one store, by key, until its commit stages them (execution.py).

Few keys are compared one by one, and more are found by a dict: most transactions write a few. What
holds a write is used again by the next transaction. Private to one client.
"""

from __future__ import annotations

from typing import Final

from limpet.stores.rtx.layout import KEPT

FEW: Final = 8
"""So many keys are compared one by one."""
NOT_WRITTEN: Final = -1


class PendingWrite:
    """A key, and the value that is written for it; None: it is deleted."""

    def __init__(self) -> None:
        self.key = b""
        self.value: bytes | None = None


class PendingWrites:
    """The writes of a transaction to a store."""

    def __init__(self) -> None:
        self.count = 0
        self.writes: list[PendingWrite] = []
        """The writes; those after the first `count` are of earlier transactions, to be used
        again."""
        self.places: dict[bytes, int] | None = None
        """Where keys are in the list, if they are more than a few."""

    def place_of(self, key: bytes) -> int:
        """Where the write of a key is in the list, or NOT_WRITTEN."""
        if self.places is not None:
            return self.places.get(key, NOT_WRITTEN)
        for place in range(self.count):
            other = self.writes[place]
            if other.key is key or other.key == key:
                return place
        return NOT_WRITTEN

    def write(self, key: bytes, value: bytes | None) -> None:
        """Have this be what is written for a key."""
        place = self.place_of(key) if self.count else NOT_WRITTEN
        if place >= 0:
            write = self.writes[place]
            write.value = value
        else:
            if self.count == len(self.writes):
                self.writes.append(PendingWrite())
            write = self.writes[self.count]
            write.key = key
            write.value = value
            # ORDER: a signal handler that raises leaves no places that lack one: all are looked at.
            places, self.places = self.places, None
            self.count += 1
            if places is not None:
                places[key] = self.count - 1
                self.places = places
            elif self.count > FEW:
                self._find_places()

    def _find_places(self) -> None:
        places = {}
        for place in range(self.count):
            write = self.writes[place]
            places[write.key] = place
        self.places = places

    def sort(self) -> None:
        """Put them in the order of keys, when all are written."""
        if self.count > FEW:
            self.writes[: self.count] = sorted(self.writes[: self.count], key=key_of)
            self._find_places()
        else:
            for last in range(1, self.count):
                self._sort_in(last)

    def _sort_in(self, last: int) -> None:
        """Put the write at `last` among those before it, which are in order.

        Keys and values move, and not what holds them: a signal handler that raises here, in the
        pure build, must not leave a write in two places of the next transaction's list.
        """
        write = self.writes[last]
        key, value = write.key, write.value
        while last:
            other = self.writes[last - 1]
            if other.key <= key:
                break
            write.key = other.key
            write.value = other.value
            write = other
            last -= 1
        write.key = key
        write.value = value

    def puts(self) -> int:
        """How many keys are written, and not deleted."""
        count = 0
        for place in range(self.count):
            write = self.writes[place]
            count += write.value is not None
        return count

    def clear(self) -> None:
        """Forget all."""
        for place in range(self.count):
            write = self.writes[place]
            write.key = b""
            write.value = None
        self.places = None
        # ORDER: before the list, as in `Reads.clear`.
        self.count = 0
        if len(self.writes) > KEPT:
            del self.writes[KEPT:]


def key_of(write: PendingWrite) -> bytes:
    """The key, by which writes are sorted."""
    return write.key
