# cython: binding=False
# The interpreter calls methods that are no function objects more quickly.
"""The ring buffer: one writer sends messages of mixed sizes to all readers (LOCO section 5.4).

As FaRM's, with acknowledgements by an SST: each reader's row says up to which position it has read.
A position is a count of bytes since the beginning; its place in memory is position % size.

Memory: a region of its own
    0     end          position behind the last message
    8     oldest       position of the oldest message that is kept
    16    number       of the next message, when none is kept
    64    writer       client id of the writer, or 0
    128   news         where readers sleep (waiting.py)
    192   room         where the writer sleeps
    256   messages     `size` bytes; each: size, number (from 0 on), bytes, padded to 8; a message
                       that does not fit before the end of memory goes on at its beginning

    send       room; oldest moves behind what will be overwritten; message; end: now it is there
    receive    own position < end; message; own position moves behind it

Room: no live reader's position may be overtaken. The writer looks at the rows only when what it
knows of them does not do. A dead reader's row does not count, from the moment when it is dead. A
live one is waited for, or, with overrun="skip", overtaken: it goes on at the oldest message, and
counts those that it has lost.

A newcomer takes its row, with the end as its position, and only then looks where it begins: at the
end, or at the oldest message. The writer, which may not have seen the row, overwrites nothing from
the end on. What is older is read as one that may be overtaken reads: if `oldest` is not beyond a
message after it was read, then it is whole.

The writer is who sends first. When it is dead, or has closed, the next one who sends is: by CAS
from the old id; a process that is alive keeps the others out (ChannelFull).

A reader that was overtaken has read anybody's payload (trap L5), so it looks at `oldest` before it
computes with a size. A message that does not end at `end` or before is damage: StoreCorrupt.

A kill leaves behind: a writer's message before the end has moved is none, and `oldest` may be
beyond what it had to be; its successor goes on behind the last message. A reader's row.
"""

from __future__ import annotations

import contextlib
import queue
from array import array
from collections.abc import Iterator
from typing import Any

from limpet.shm.errors import (
    ChannelFull,
    ChannelRemoved,
    NodeFailed,
    ParameterError,
    StoreCorrupt,
    ValueTooLarge,
)
from limpet.shm.parameters import parse_size
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.deadline import deadline_of, left_us
from limpet.stores.channels.ring_layout import (
    BLOCK,
    DATA,
    END,
    EVER,
    HEAD,
    NEWS,
    NOW,
    NUMBER,
    OLD,
    OLDEST,
    POSITION_MAX,
    ROOM,
    SIZE,
    SIZE_MAX,
    SKIP,
    WRITER,
)
from limpet.stores.channels.ring_positions import Positions
from limpet.stores.channels.waiting import Waiting
from limpet.stores.codecs import Codec
from limpet.stores.status import DONE, FULL

CLIENT_MASK = (1 << 48) - 1
"""The id in a participant's word."""
assert NUMBER + 8 <= WRITER < NEWS < ROOM < DATA


class RingBuffer(Channel):
    """A broadcast of Python objects from one process to many: `pool.ring`."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        size: int | str = SIZE,
        overrun: str = BLOCK,
        codec: str = "pickle",
    ) -> None:
        """`size`: bytes of messages that are kept at most. `overrun`: "block", the writer waits for
        slow readers, or "skip", it overtakes them."""
        wanted = parse_size(size)
        if not 64 <= wanted <= SIZE_MAX or wanted % 8:
            raise ParameterError(
                f"a ring's size is 64 bytes or more, a multiple of 8, not {size!r}"
            )
        if overrun not in (BLOCK, SKIP):
            raise ParameterError(f"overrun is {BLOCK!r} or {SKIP!r}, not {overrun!r}")
        coding = Codec.named(codec)
        super().__init__(
            manager,
            name,
            parent,
            size=DATA + wanted,
            kind="ring",
            of=wanted,
            overrun=overrun,
            codec=codec,
        )
        self.encode = coding.encode
        self.decode = coding.decode
        self.size = wanted
        self.skips = overrun == SKIP
        remote = self.pool.parameters.multi_host
        self.news = Waiting(self.endpoint, self.address + NEWS, remote)
        self.room = Waiting(self.endpoint, self.address + ROOM, remote)
        self.acks: Any = None
        """Positions of the readers, once we are one of them."""
        rows = self._table()
        self.ack_seats = rows.seats
        self.ack_rows = rows.address
        self.ack_stride = rows.stride
        self.ack_count = rows.rows
        self.header = array("Q", [0, 0])
        self.writer_as = 0
        """The id as which we are the writer."""
        self.end = 0
        self.oldest = 0
        self.number = 0
        self.limit = 0
        """The writer's: end, oldest, number of the next message, and how far there is room."""
        self.reader_as = 0
        self.position = 0
        self.seen_end = 0
        self.expected = 0
        self.unsafe = 0
        self.ack = 0
        """The reader's: position, the end when it looked last, number of the next message if it has
        had one before, up to where it may be overtaken, and the address of its row."""
        self.lost = 0
        """Messages that were overwritten before this process received them."""
        self.closed = False

    def _table(self) -> Any:
        return Positions(
            self.manager, "acks", self, participants=self.pool.parameters.clients, join=False
        )

    # ---- the writer ---------------------------------------------------------------------------

    def send(self, item: Any, timeout: float | None = None) -> None:
        """Send a message to all readers; waits for the slow ones, at most `timeout` seconds.

        2 round trips. Raises queue.Full, ValueTooLarge, ChannelFull (there is another writer).
        """
        data = self.encode(item)
        if HEAD + len(data) > self.size:
            raise ValueTooLarge(
                f"the message takes {HEAD + len(data)} bytes; {self!r} has {self.size}"
            )
        deadline = None if timeout is None else deadline_of(True, timeout)
        outcome = self._send_once(data)
        looks = 0
        while outcome != DONE:
            left = left_us(deadline, queue.Full)
            looks += 1
            if self.room.spin(looks):
                outcome = self._send_once(data)
                continue
            self.enter()
            try:
                token = self.room.prepare()
                outcome = self._append(data)
            finally:
                self.leave()
            if outcome != DONE:
                self.room.sleep(token, left)

    def send_nowait(self, item: Any) -> None:
        """`send` without waiting for room."""
        self.send(item, 0)

    def _send_once(self, data: bytes) -> int:
        self.enter()
        try:
            return self._append(data)
        finally:
            self.leave()

    def _append(self, data: bytes) -> int:
        """Write a message: DONE, or FULL. In an operation."""
        endpoint = self.endpoint
        if self.writer_as != self.client.ident or self.closed:
            self._become_writer()
        length = HEAD + (len(data) + 7 & ~7)
        if self.end + length > self.limit and not self._has_room(length):
            return FULL
        if self.oldest + self.size < self.end + length:
            self._overwrite(self.end + length)
        at = self.end % self.size
        self.header[0] = len(data)
        self.header[1] = self.number
        if at + length <= self.size:
            endpoint.write_gather(self.address + DATA + at, self.header, 2, data, b"")
        else:
            self._write_wrapped(at, data)
        # CRASH(sending): the message is none; the next writer writes over it.
        self.end += length
        self.number += 1
        # LINEARIZES: it is there for all readers. ORDER: a full barrier, before the look at `news`.
        endpoint.swap(self.address + END, self.end)
        endpoint.wait()
        self.news.wake()
        return DONE

    def _write_wrapped(self, at: int, data: bytes) -> None:
        """Write header and message around the end of memory."""
        message = memoryview(self.header).tobytes() + data + bytes(-len(data) & 7)
        rest = self.size - at
        self.endpoint.write(self.address + DATA + at, message[:rest])
        self.endpoint.write(self.address + DATA, message[rest:])

    def _become_writer(self) -> None:
        if self.closed:
            raise ValueError(f"{self!r} is closed")
        at, mine = self.address + WRITER, self.client.ident
        while True:
            ident = self.endpoint.load(at)
            if ident and ident != mine and self.lives(ident):
                raise ChannelFull(f"{self.name!r} of {self.pool.url} has a writer: client {ident}")
            # CRASH(writer): the next one who sends sees that it is dead.
            if self.endpoint.cas(at, ident, mine) == ident:
                break
        self.end = self._sound(self.endpoint.load(self.address + END))
        self.oldest = self._sound(self.endpoint.load(self.address + OLDEST))
        if self.oldest > self.end or self.end - self.oldest > self.size:
            raise self._damaged(self.end)
        self.number = self._number_at(self.end)
        self.limit = 0
        self.writer_as = mine

    def _number_at(self, end: int) -> int:
        """The number of the message at the end, the next one, when that was `end`."""
        number = 0
        position = self.size + end
        while position != end:
            oldest = self.endpoint.load(self.address + OLDEST)
            if position < oldest or position > end:
                # The first look, or one that was overtaken while it went on.
                position = self._sound(oldest)
                number = self.endpoint.load(self.address + NUMBER)
                if oldest > end:
                    end = oldest
            else:
                size, last = self._head_at(position)
                # ORDER: after the head: it is one if it was not overwritten meanwhile.
                if self.endpoint.load(self.address + OLDEST) <= position:
                    position += self._length(size, end - position, position)
                    number = last + 1
        return number

    def _has_room(self, length: int) -> bool:
        """Look at the readers' positions; whether a message may be that long now."""
        self._sound(self.end + length)
        if self.skips:
            self.limit = POSITION_MAX
            return True
        floor = self.end
        for row in range(self.ack_count):
            ident = self.endpoint.load(self.ack_seats + 8 * row)
            if ident:
                position = self.endpoint.load(self.ack_rows + row * self.ack_stride)
                if position < floor and (
                    position + self.size >= self.end + length or self._counts(ident)
                ):
                    floor = position
        self.limit = min(floor + self.size, POSITION_MAX)
        return self.end + length <= self.limit

    def _counts(self, ident: int) -> bool:
        """Whether a reader that has no room for us yet is alive."""
        return bool(self.lives(ident & CLIENT_MASK))

    def _overwrite(self, end: int) -> None:
        """Before memory is used up to the position `end`: forget the messages that were there."""
        oldest = self.oldest
        while oldest + self.size < end:
            oldest += self._length(self._head_at(oldest)[0], self.end - oldest, oldest)
        if oldest == self.end:
            self.endpoint.store(self.address + NUMBER, self.number)
        self.oldest = oldest
        # ORDER: before any byte of them changes; a full barrier.
        self.endpoint.swap(self.address + OLDEST, oldest)

    def _head_at(self, position: int) -> tuple[int, int]:
        """Size and number of the message at a position."""
        at = self.address + DATA
        return (
            self.endpoint.load(at + position % self.size),
            self.endpoint.load(at + (position + 8) % self.size),
        )

    def _length(self, size: int, room: int, position: int) -> int:
        """Bytes of the message at a position, with its head: at most `room`, or StoreCorrupt."""
        # ORDER: the size by itself before the sum, which might wrap.
        if room > self.size or size > room or HEAD + (size + 7 & ~7) > room:
            raise self._damaged(position)
        return HEAD + (size + 7 & ~7)

    def _sound(self, position: int) -> int:
        """A position that was read from memory; StoreCorrupt, if it cannot be one."""
        if position > POSITION_MAX or position & 7:
            raise self._damaged(position)
        return position

    def _damaged(self, position: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.name!r} of {self.pool.url}: there is no message at position {position}: memory "
            "was damaged; remove the ring, and make it anew"
        )

    # ---- readers --------------------------------------------------------------------------------

    def subscribe(self, start: str = NOW) -> None:
        """Be a reader, of what is sent from now on, or, with start="oldest", of all that is kept.

        `receive` does that, from now on, where it was not done before.
        """
        if start not in (NOW, OLD):
            raise ParameterError(f"start is {NOW!r} or {OLD!r}, not {start!r}")
        if self.acks is None:
            self.acks = self._table()
        self.enter()
        try:
            self._check_open()
            if self.reader_as != self.client.ident:
                self._begin(start)
        finally:
            self.leave()

    def unsubscribe(self) -> None:
        """Be no reader any more; the writer does not wait for us."""
        if self.acks is not None:
            self.acks.resign()
            self.reader_as = 0

    def _begin(self, start: str) -> None:
        end = self.endpoint.load(self.address + END)
        self.acks.first = end
        row = self.acks.row()
        self.ack = self.ack_rows + row * self.ack_stride
        # ORDER: after the row is there: so nothing is overwritten from this end on.
        self.seen_end = self.endpoint.load(self.address + END)
        self.position = self.seen_end
        self.unsafe = EVER if self.skips else self.seen_end
        self.expected = 0
        if start == OLD:
            self.position = self._sound(self.endpoint.load(self.address + OLDEST))
        elif self.skips:
            self.expected = self._number_at(self.position) + 1
            end = self.endpoint.load(self.address + END)
            # ORDER: after the number, which is of another place if the writer has overtaken this.
            while end > self.position and (
                self.endpoint.load(self.address + OLDEST) >= self.position
            ):
                self.seen_end = end
                self.position = end
                self.expected = self._number_at(end) + 1
                end = self.endpoint.load(self.address + END)
        self.endpoint.swap(self.ack, self.position)
        self.reader_as = self.client.ident

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self!r} is closed")

    def receive(self, timeout: float | None = None) -> Any:
        """The next message; waits for it, at most `timeout` seconds. Raises queue.Empty.

        1 round trip when it is there.
        """
        deadline = None if timeout is None else deadline_of(True, timeout)
        data = self._receive_once()
        looks = 0
        while data is None:
            left = left_us(deadline, queue.Empty)
            looks += 1
            if self.news.spin(looks):
                data = self._receive_once()
                continue
            self.enter()
            try:
                token = self.news.prepare()
                data = self._next()
            finally:
                self.leave()
            if data is None:
                self.news.sleep(token, left)
        return self.decode(data)

    def receive_nowait(self) -> Any:
        """`receive` without waiting."""
        return self.receive(0)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.receive()

    def _receive_once(self) -> Any:
        if self.acks is None:
            self.subscribe()
        self.enter()
        try:
            return self._next()
        finally:
            self.leave()

    def _next(self) -> Any:
        """The next message, as bytes; None: there is none. In an operation."""
        endpoint = self.endpoint
        self._check_open()
        if self.reader_as != self.client.ident:
            self._begin(NOW)
        while True:
            if self.position == self.seen_end:
                self.seen_end = endpoint.load(self.address + END)
                if self.position == self.seen_end:
                    return None
            at = self.position % self.size
            start = self.address + DATA
            size = endpoint.load(start + at)
            at = self._behind(at, 8)
            number = endpoint.load(start + at)
            data = b""
            if size <= self.size - HEAD:
                data = self._body(self._behind(at, HEAD - 8), size)
            endpoint.wait()
            if self.position < self.unsafe:
                # ORDER: after the message, which is whole if the writer has not come so far.
                oldest = endpoint.load(self.address + OLDEST)
                if oldest > self.position:
                    self.position = self._sound(oldest)
                    if self.seen_end < oldest:
                        self.seen_end = oldest
                    # ORDER: if there is nothing to read from here on, a writer may wait for us.
                    endpoint.swap(self.ack, self.position)
                    self.room.wake()
                    continue
            length = self._length(size, self.seen_end - self.position, self.position)
            if number > POSITION_MAX or number + 1 < self.expected:
                raise self._damaged(self.position)
            self.position += length
            if self.expected:
                self.lost += number + 1 - self.expected
            self.expected = number + 2
            # ORDER: a full barrier, before the look at `room`.
            endpoint.swap(self.ack, self.position)
            self.room.wake()
            return data

    def _behind(self, at: int, size: int) -> int:
        """The place in memory so many bytes behind the place `at`; no more than all of it."""
        behind = at + size
        return behind if behind < self.size else behind - self.size

    def _body(self, at: int, size: int) -> bytes:
        start = self.address + DATA
        if at + size <= self.size:
            return self.endpoint.read(start + at, size)
        rest = self.size - at
        return self.endpoint.read(start + at, rest) + self.endpoint.read(start, size - rest)

    def close(self) -> None:
        """This process neither sends nor receives by this handle any more: ValueError."""
        if not self.closed:
            self.closed = True
            self.manager.forget(self)
            # Of a ring that was removed, or lost, there is nothing to give back.
            with contextlib.suppress(ChannelRemoved, NodeFailed):
                self.unsubscribe()
                self.enter()
                try:
                    self.endpoint.cas(self.address + WRITER, self.client.ident, 0)
                finally:
                    self.leave()
