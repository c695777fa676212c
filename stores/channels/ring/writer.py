"""The writer of a ring buffer.

The first client that sends is the writer. When it is dead, or has closed, the next client that
sends becomes the writer, by a CAS from the old id; while a writer lives, others get ChannelFull.
"""

from __future__ import annotations

from limpet.shm.errors import ChannelFull
from limpet.stores.channels.participants import Participants
from limpet.stores.channels.ring.layout import (
    CLIENT_MASK,
    END,
    HEAD,
    NUMBER,
    OLDEST,
    POSITION_MAX,
    WRITER,
)
from limpet.stores.channels.ring.messages import Messages
from limpet.stores.status import DONE, FULL

assert NUMBER + 8 <= WRITER


class Writer:
    """This process as the writer. In an operation."""

    def __init__(
        self, messages: Messages, readers: Participants, acks: int, stride: int, skips: bool
    ) -> None:
        """`acks`: the address of the first reader's position; those of the others follow at
        distances of `stride` bytes. `skips`: slow readers are overtaken."""
        self.messages = messages
        self.endpoint = messages.endpoint
        self.readers = readers
        self.acks = acks
        self.stride = stride
        self.skips = skips
        self.ident = 0
        """Our client id when we became the writer."""
        self.end = 0
        self.oldest = 0
        self.number = 0
        """Position of the next message and of the oldest one, and number of the next."""
        self.limit = 0
        """There is room up to this position, by our last look."""

    def send(self, data: bytes) -> int:
        """Write a message: DONE, or FULL. Raises ChannelFull."""
        if self.ident != self.readers.client.ident:
            self._become()
        length = HEAD + (len(data) + 7 & ~7)
        if self.end + length > self.limit and not self._has_room(length):
            return FULL
        if self.oldest + self.messages.size < self.end + length:
            self._overwrite(self.end + length)
        self.write(data)
        # CRASH(sending): the message is not sent; the next writer writes over it.
        self.end += length
        self.number += 1
        # LINEARIZES: all readers see it. ORDER: a full barrier, before the look at `news`.
        self.endpoint.swap(self.messages.address + END, self.end)
        self.endpoint.wait()
        return DONE

    def write(self, data: bytes) -> None:
        """Write a message behind the end."""
        self.messages.write(self.end, self.number, data)

    def _become(self) -> None:
        messages = self.messages
        at, mine = messages.address + WRITER, self.readers.client.ident
        while True:
            ident = self.endpoint.load(at)
            if ident and ident != mine and self.readers.lives(ident):
                raise ChannelFull(f"{messages.ring} has a writer: client {ident}")
            # CRASH(writer): the next client that sends sees that it is dead.
            if self.endpoint.cas(at, ident, mine) == ident:
                break
        self.end = messages.sound(messages.end())
        self.oldest = messages.sound(messages.oldest())
        if self.oldest > self.end or self.end - self.oldest > messages.size:
            raise messages.damaged(self.end)
        self.number = messages.next_number(self.end)
        self.limit = 0
        self.ident = mine

    def resign(self) -> None:
        """Stop being the writer, if we are."""
        self.endpoint.cas(self.messages.address + WRITER, self.readers.client.ident, 0)

    def _has_room(self, length: int) -> bool:
        """Look at the readers' positions; whether there is room for a message of that length."""
        size = self.messages.size
        self.messages.sound(self.end + length)
        if self.skips:
            self.limit = POSITION_MAX
            return True
        floor = self.end
        for row in range(self.readers.count):
            ident = self.readers.word(row)
            if ident:
                position = self.endpoint.load(self.acks + row * self.stride)
                if position < floor and (
                    position + size >= self.end + length or self.counts(ident)
                ):
                    floor = position
        self.limit = min(floor + size, POSITION_MAX)
        return self.end + length <= self.limit

    def counts(self, word: int) -> bool:
        """Whether the reader of that word, which leaves no room yet, is alive."""
        return self.readers.lives(word & CLIENT_MASK)

    def _overwrite(self, end: int) -> None:
        """Move `oldest` behind all messages that a write up to position `end` destroys."""
        messages = self.messages
        oldest = self.oldest
        while oldest + messages.size < end:
            oldest += messages.length(
                messages.size_at(messages.place(oldest)), self.end - oldest, oldest
            )
        if oldest == self.end:
            self.endpoint.store(messages.address + NUMBER, self.number)
        self.oldest = oldest
        # ORDER: before any byte of them changes; a full barrier.
        self.endpoint.swap(messages.address + OLDEST, oldest)
