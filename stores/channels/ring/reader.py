"""A reader of a ring buffer.

A newcomer takes its row, with the end as its position, and only then chooses its beginning: the
end, or the oldest message. The writer, which may not have seen the row, overwrites nothing from the
end on. The writer may overwrite an older message while the newcomer reads it: the message is whole
if `oldest` is not beyond it after it was read.

A reader that was overtaken may have read any bytes (trap L5), so it looks at `oldest` before it
computes with a size. A message that ends beyond `end` is damaged: StoreCorrupt.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.ring.layout import EVER, HEAD, OLD, POSITION_MAX
from limpet.stores.channels.ring.messages import Messages
from limpet.stores.channels.waiting import Waiting


class Reader:
    """This process as a reader. In an operation."""

    def __init__(self, messages: Messages, room: Waiting, skips: bool) -> None:
        """`room`: the word on which the writer sleeps. `skips`: slow readers are overtaken."""
        self.messages = messages
        self.endpoint = messages.endpoint
        self.room = room
        self.skips = skips
        self.ident = 0
        """Our client id when we became a reader."""
        self.ack = 0
        """Address of our position in shared memory."""
        self.position = 0
        self.seen_end = 0
        """The end at our last look."""
        self.expected = 0
        """1 + number of the next message, after the first one."""
        self.unsafe = 0
        """The writer may overtake us up to this position."""
        self.lost = 0
        """Messages that were overwritten before we received them."""

    def begin(self, ident: int, ack: int, start: str) -> None:
        """Begin at the end, or at the oldest message, with the row whose position is at `ack`."""
        messages = self.messages
        self.ack = ack
        # ORDER: after the row is there, so that nothing is overwritten from this end on.
        self.seen_end = messages.end()
        self.position = self.seen_end
        self.unsafe = EVER if self.skips else self.seen_end
        self.expected = 0
        if start == OLD:
            self.position = messages.sound(messages.oldest())
            if self.seen_end < self.position:
                self.seen_end = self.position  # the writer went on meanwhile
        elif self.skips:
            self.expected = messages.next_number(self.position) + 1
            end = messages.end()
            # ORDER: after the number, which may be of another message if the writer has overtaken
            # us.
            while end > self.position and messages.oldest() >= self.position:
                self.seen_end = end
                self.position = end
                self.expected = messages.next_number(end) + 1
                end = messages.end()
        self.endpoint.swap(self.ack, self.position)
        self.ident = ident

    def next(self) -> Any:
        """The next message, as bytes; None: there is none."""
        messages = self.messages
        while True:
            if self.position == self.seen_end:
                self.seen_end = messages.end()
                if self.position == self.seen_end:
                    return None
            at = messages.place(self.position)
            size = messages.size_at(at)
            number = messages.number_at(at)
            data = b""
            if size <= messages.size - HEAD:
                data = messages.body_at(at, size)
            self.endpoint.wait()
            # ORDER: after the message, which is whole if the writer has not overwritten it by then.
            if self.position < self.unsafe and self.was_overtaken():
                continue
            length = messages.length(size, self.seen_end - self.position, self.position)
            if number > POSITION_MAX or number + 1 < self.expected:
                raise messages.damaged(self.position)
            self.position += length
            if self.expected:
                self.lost += number + 1 - self.expected
            self.expected = number + 2
            # ORDER: a full barrier, before the look at `room`.
            self.endpoint.swap(self.ack, self.position)
            self.room.wake()
            return data

    def was_overtaken(self) -> bool:
        """Whether the writer has overtaken us; if so, go on at the oldest message."""
        oldest = self.messages.oldest()
        if oldest <= self.position:
            return False
        self.position = self.messages.sound(oldest)
        if self.seen_end < oldest:
            self.seen_end = oldest
        # ORDER: the position before the wake: a writer may wait for us.
        self.endpoint.swap(self.ack, self.position)
        self.room.wake()
        return True
