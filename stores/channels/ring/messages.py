"""The messages of a ring buffer in memory, by their positions (ring_buffer.py has the table).

A position is a count of bytes since the beginning; its place in memory is position % size. A
message is its size, its number (from 0 on) and its bytes, padded to a multiple of 8. A message that
does not fit before the end of memory goes on at its beginning.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.errors import StoreCorrupt
from limpet.stores.channels.ring.layout import DATA, END, HEAD, NUMBER, OLDEST, POSITION_MAX


class Messages:
    """The ring at `address`, with `size` bytes of messages. In an operation."""

    def __init__(self, endpoint: Any, address: int, size: int, ring: str) -> None:
        """`ring`: its name, for errors."""
        self.endpoint = endpoint
        self.address = address
        self.size = size
        self.ring = ring
        self.header = array("Q", [0, 0])

    def end(self) -> int:
        """Position behind the last message."""
        return self.endpoint.load(self.address + END)

    def oldest(self) -> int:
        """Position of the oldest message that is kept."""
        return self.endpoint.load(self.address + OLDEST)

    def write(self, position: int, number: int, data: bytes) -> None:
        """Write a message."""
        start, at = self.address + DATA, position % self.size
        self.header[0] = len(data)
        self.header[1] = number
        if at + HEAD + (len(data) + 7 & ~7) <= self.size:
            self.endpoint.write_gather(start + at, self.header, 2, data, b"")
        else:
            message = memoryview(self.header).tobytes() + data + bytes(-len(data) & 7)
            rest = self.size - at
            self.endpoint.write(start + at, message[:rest])
            self.endpoint.write(start, message[rest:])

    def place(self, position: int) -> int:
        """Where in memory the message at a position begins."""
        return position % self.size

    def size_at(self, place: int) -> int:
        """Size of the message that begins there."""
        return self.endpoint.load(self.address + DATA + place)

    def number_at(self, place: int) -> int:
        """Number of the message that begins there."""
        return self.endpoint.load(self.address + DATA + self._behind(place, 8))

    def body_at(self, place: int, size: int) -> bytes:
        """The bytes of the message of this size that begins there."""
        start, at = self.address + DATA, self._behind(place, HEAD)
        if at + size <= self.size:
            return self.endpoint.read(start + at, size)
        rest = self.size - at
        return self.endpoint.read(start + at, rest) + self.endpoint.read(start, size - rest)

    def _behind(self, at: int, size: int) -> int:
        """The place in memory so many bytes behind the place `at`; no more than all of it."""
        behind = at + size
        return behind if behind < self.size else behind - self.size

    def next_number(self, end: int) -> int:
        """The number of the message at the end, the next one, when that was `end`."""
        number = 0
        position = self.size + end
        while position != end:
            oldest = self.oldest()
            if position < oldest or position > end:
                # The first look, or a look that was overtaken while it went on.
                position = self.sound(oldest)
                number = self.endpoint.load(self.address + NUMBER)
                if oldest > end:
                    end = oldest
            else:
                at = self.place(position)
                size, last = self.size_at(at), self.number_at(at)
                # ORDER: after the head: it is one if it was not overwritten meanwhile.
                if self.oldest() <= position:
                    position += self.length(size, end - position, position)
                    number = last + 1
        return number

    def length(self, size: int, room: int, position: int) -> int:
        """Bytes of the message at a position, with its head: at most `room`, or StoreCorrupt."""
        # ORDER: the size by itself before the sum, which might wrap.
        if room > self.size or size > room or HEAD + (size + 7 & ~7) > room:
            raise self.damaged(position)
        return HEAD + (size + 7 & ~7)

    def sound(self, position: int) -> int:
        """A position that was read from memory; StoreCorrupt, if it cannot be one."""
        if position > POSITION_MAX or position & 7:
            raise self.damaged(position)
        return position

    def damaged(self, position: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.ring}: there is no message at position {position}: memory was damaged; remove "
            "the ring, and make it anew"
        )
