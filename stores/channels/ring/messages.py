"""The messages of a ring buffer, its readers and its writer (ring_buffer.py has the table).

A position is a count of bytes since the beginning; its place in memory is position % size. A
message is its size, its number (from 0 on) and its bytes, padded to a multiple of 8. A message that
does not fit before the end of memory goes on at its beginning.

`Reader`. A newcomer takes its row, with the end as its position, and only then chooses its
beginning: the end, or the oldest message. The writer, which may not have seen the row, overwrites
nothing from the end on. The writer may overwrite an older message while the newcomer reads it: the
message is whole if `oldest` is not beyond it after it was read.

Round trips. All words of a ring lie on one node, whose order is kept, so `send` is one phase:
`oldest`, the message, `end`, and the look whether a reader sleeps. One is the least: the ring's
memory has to be written, and the writer has to know that it was. It needs more once in a lap, when
it looks at the readers' positions (2), and for a message that overwrites more than AHEAD words of
others (their sizes, which are read ahead otherwise). `receive` is one phase, too: `end`, then as
many words of the next message as the last one had, then `oldest` if the writer may overtake. A
message that is longer takes one more. The reader's position goes out in the background: until it
arrives, the writer has less room.

A reader that was overtaken may have read any bytes (trap L5), so it looks at `oldest` before it
computes with a size. A message that ends beyond `end` is damaged: StoreCorrupt.

`Writer`. The first client that sends is the writer. When it is dead, or has closed, the next client
that sends becomes the writer, by a CAS from the old id; while a writer lives, others get
ChannelFull.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.errors import ChannelFull, StoreCorrupt
from limpet.stores.channels.participants import Participants
from limpet.stores.channels.ring.layout import (
    CLIENT_MASK,
    DATA,
    END,
    EVER,
    HEAD,
    NUMBER,
    OLD,
    OLDEST,
    POSITION_MAX,
    WRITER,
)
from limpet.stores.channels.waiting import Waiting
from limpet.stores.core.object_layout import IMAGE_SIZE
from limpet.stores.core.status import DONE, FULL

AHEAD: Final = 64
"""Words that the writer reads ahead of what it overwrites."""
LEAST: Final = 8
"""Words of a message that a reader reads at least."""


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
        """Post the write of a message."""
        start, at = self.address + DATA, position % self.size
        self.header[0] = len(data)
        self.header[1] = number
        if at + HEAD + (len(data) + 7 & ~7) <= self.size:
            self.endpoint.post_gather(start + at, self.header, 2, data, b"")
        else:
            message = memoryview(self.header).tobytes() + data + bytes(-len(data) & 7)
            rest = self.size - at
            self.endpoint.post_gather(start + at, self.header, 0, message[:rest], b"")
            self.endpoint.post_gather(start, self.header, 0, message[rest:], b"")

    def post_read(self, position: int, words: Any, count: int) -> None:
        """Post the read of so many words from a position on, at most as many as there are."""
        start, at = self.address + DATA, position % self.size
        rest = self.size - at >> 3
        if rest >= count:
            self.endpoint.post_read(start + at, words, count)
        else:
            self.endpoint.post_read(start + at, words, rest)
            self.endpoint.post_read(start, words, min(count - rest, at >> 3), rest)

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
        """The bytes of the message of this size that begins there; a phase, or two at the end."""
        start, at = self.address + DATA, self._behind(place, HEAD)
        if at + size <= self.size:
            return self.endpoint.fetch(start + at, size)
        rest = self.size - at
        return self.endpoint.fetch(start + at, rest) + self.endpoint.fetch(start, size - rest)

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


class Reader:
    """This process as a reader. In an operation."""

    def __init__(self, messages: Messages, room: Waiting, skips: bool) -> None:
        """`room`: the word on which the writer sleeps. `skips`: slow readers are overtaken."""
        self.messages = messages
        self.endpoint = messages.endpoint
        self.room = room
        self.skips = skips
        self.image = self.endpoint.image(IMAGE_SIZE)
        self.width = LEAST
        """Words of the next message that it reads at first."""
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
        messages, endpoint, image = self.messages, self.endpoint, self.image
        while True:
            width, first = self.width, self.position
            end_ticket = endpoint.post_load(messages.address + END)
            # ORDER: after the end: what is before it is written.
            messages.post_read(first, image.words, width)
            # ORDER: after the message, which is whole if the writer has not overwritten it by then.
            oldest = self._post_oldest()
            endpoint.wait()
            self.seen_end = endpoint.result(end_ticket)
            if self.seen_end == first:
                return None
            if first < self.unsafe and self.was_overtaken(endpoint.result(oldest)):
                continue
            image.open()
            size, number = image.word(0), image.word(1)
            length = messages.length(size, self.seen_end - first, first)
            if number > POSITION_MAX or number + 1 < self.expected:
                raise messages.damaged(first)
            if length <= 8 * width:
                data = image.cut(HEAD, size)
                self.width = max(length >> 3, width - 1, LEAST)
            elif length <= IMAGE_SIZE:
                self.width = length >> 3
                continue
            else:
                data = messages.body_at(messages.place(first), size)
                oldest = self._post_oldest()
                endpoint.wait()
                if first < self.unsafe and self.was_overtaken(endpoint.result(oldest)):
                    continue
            self.position += length
            if self.expected:
                self.lost += number + 1 - self.expected
            self.expected = number + 2
            self._acknowledge()
            return data

    def _post_oldest(self) -> int:
        """Post the look at `oldest`, if the writer may overtake us; its ticket."""
        if self.position < self.unsafe:
            return self.endpoint.post_load(self.messages.address + OLDEST)
        return 0

    def _acknowledge(self) -> None:
        """Publish our position, in the background, and wake a writer that waits for us."""
        scope = self.endpoint.background(True)
        self.endpoint.post_swap(self.ack, self.position)
        # ORDER: the position before the look at `room`, which may be on another node.
        self.endpoint.wait()
        self.room.wake()
        self.endpoint.background(scope)

    def was_overtaken(self, oldest: int) -> bool:
        """Whether the writer has overtaken us, by the position of the oldest message; if so, go on
        there."""
        if oldest <= self.position:
            return False
        self.position = self.messages.sound(oldest)
        if self.seen_end < oldest:
            self.seen_end = oldest
        self._acknowledge()
        return True


assert NUMBER + 8 <= WRITER


class Writer:
    """This process as the writer. In an operation."""

    def __init__(
        self, messages: Messages, readers: Participants, acks: int, stride: int, skips: bool,
        news: Waiting,
    ) -> None:  # fmt: skip
        """`acks`: the address of the first reader's position; those of the others follow at
        distances of `stride` bytes. `skips`: slow readers are overtaken. `news`: the word on which
        readers sleep."""
        self.messages = messages
        self.endpoint = messages.endpoint
        self.news = news
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
        self.rows = array("Q", bytes(8 * readers.count))
        self.tickets = array("Q", bytes(8 * readers.count))
        """The words of the readers, and the looks at their positions."""
        self.ahead = array("Q", bytes(8 * AHEAD))
        """Words of messages from position `ahead_from` on, up to `ahead_end`."""
        self.ahead_from = 0
        self.ahead_end = 0
        self.word = array("Q", [0])

    def send(self, data: bytes) -> int:
        """Write a message: DONE, or FULL. Raises ChannelFull."""
        if self.ident != self.readers.client.ident:
            self._become()
        length = HEAD + (len(data) + 7 & ~7)
        if self.end + length > self.limit and not self._has_room(length):
            return FULL
        ahead = self.ahead_end
        if self.oldest + self.messages.size < self.end + length:
            ahead = self._overwrite(self.end + length)
        self.write(data)
        # CRASH(sending): the message is not sent; the next writer writes over it.
        self.end += length
        self.number += 1
        # LINEARIZES: all readers see it. ORDER: after the message, and before the look at `news`;
        # all are on one node.
        self.endpoint.post_swap(self.messages.address + END, self.end)
        ticket = self.news.post_look()
        self.endpoint.wait()
        self.ahead_end = ahead
        self.news.wake_if(self.endpoint.result(ticket))
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
        self.ahead_end = 0
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
        endpoint, rows = self.endpoint, self.rows
        endpoint.post_read(self.readers.address, rows, self.readers.count)
        endpoint.wait()
        for row in range(self.readers.count):
            if rows[row]:
                # ORDER: after the row's word: a newcomer has its position by then.
                self.tickets[row] = endpoint.post_load(self.acks + row * self.stride)
        endpoint.wait()
        for row in range(self.readers.count):
            ident = rows[row]
            if ident:
                position = endpoint.result(self.tickets[row])
                if position < floor and (
                    position + size >= self.end + length or self.counts(ident)
                ):
                    floor = position
        self.limit = min(floor + size, POSITION_MAX)
        return self.end + length <= self.limit

    def counts(self, word: int) -> bool:
        """Whether the reader of that word, which leaves no room yet, is alive."""
        return self.readers.lives(word & CLIENT_MASK)

    def _overwrite(self, end: int) -> int:
        """Post that `oldest` moves behind all messages that a write up to position `end` destroys;
        `ahead_end`, once the phase has ended."""
        messages, endpoint = self.messages, self.endpoint
        oldest, ahead = self.oldest, self.ahead_end
        while oldest + messages.size < end:
            if not self.ahead_from <= oldest < ahead:
                self.ahead_end = 0
                ahead = self._post_ahead(oldest)
                endpoint.wait()
            size = self.ahead[oldest - self.ahead_from >> 3]
            oldest += messages.length(size, self.end - oldest, oldest)
        if oldest == self.end:
            self.word[0] = self.number
            endpoint.post_write(messages.address + NUMBER, self.word, 1)
        self.oldest = oldest
        # ORDER: before any byte of them changes, on the same node.
        endpoint.post_swap(messages.address + OLDEST, oldest)
        if oldest < self.end and not self.ahead_from <= oldest < ahead:
            # For the next message. The part that is read is not overwritten in this phase.
            self.ahead_end = 0
            ahead = self._post_ahead(oldest)
        return ahead

    def _post_ahead(self, position: int) -> int:
        """Post the read of words from a position on; `ahead_end`, once the phase has ended."""
        count = min(self.end - position >> 3, AHEAD)
        self.messages.post_read(position, self.ahead, count)
        self.ahead_from = position
        return position + 8 * count
