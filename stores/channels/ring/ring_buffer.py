"""The ring buffer: one writer sends messages of mixed sizes to all readers (LOCO section 5.4).

As FaRM's, with acknowledgements by an SST: each reader's row says up to which position it has read
(`Positions`). messages.py has the messages in memory, the writer and the readers. Here are the
interface and the waiting.

Memory: a region of its own
    0     end          position behind the last message
    8     oldest       position of the oldest message that is kept
    16    number       of the next message, when none is kept
    64    writer       client id of the writer, or 0
    128   news         where readers sleep (waiting.py)
    192   room         where the writer sleeps
    256   messages     `size` bytes (messages.py)

    send       room; oldest moves behind what will be overwritten; message; end: now it is there
    receive    own position < end; message; own position moves behind it

Room: the writer may not overtake a live reader's position. It looks at the rows only when their
positions of its last look leave too little room. A dead reader's row does not count. The writer
waits for a live reader, or, with overrun="skip", overtakes it: the reader goes on at the oldest
message, and counts those that it has lost.

A kill leaves behind: a message that is not sent, if the end has not moved, and perhaps an `oldest`
that is higher than necessary; the next writer goes on behind the last message. A dead reader's row.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from typing import Any

from limpet.shm.errors import ChannelRemoved, NodeFailed, ParameterError, ValueTooLarge
from limpet.shm.parameters import parse_size
from limpet.shm.times import Seconds
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.participants import Participants
from limpet.stores.channels.ring.layout import (
    BLOCK,
    DATA,
    HEAD,
    NEWS,
    NOW,
    OLD,
    ROOM,
    SIZE,
    SIZE_MAX,
    SKIP,
    WRITER,
)
from limpet.stores.channels.ring.messages import Messages, Reader, Writer
from limpet.stores.channels.sst import SST
from limpet.stores.channels.waiting import Wait, Waiting, deadline_of
from limpet.stores.core.codecs import Codec
from limpet.stores.core.status import DONE


class Positions(SST):
    """How far each reader has read; a newcomer begins at `first`."""

    first = 0

    def joined(self) -> None:
        var = self[self.own_row]
        var.store(self.first)
        var.place()


assert WRITER < NEWS < ROOM < DATA


class RingBuffer(Channel):
    """A broadcast of Python objects from one process to many: `pool.ring`."""

    writer_class: type[Writer] = Writer
    reader_class: type[Reader] = Reader
    """The classes of its parts."""

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
        """`size`: bytes of memory for messages. `overrun`: "block", the writer waits for slow
        readers, or "skip", it overtakes them."""
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
        skips = overrun == SKIP
        remote = self.pool.parameters.multi_host
        self.news = Waiting(self.endpoint, self.address + NEWS, remote)
        self.room = Waiting(self.endpoint, self.address + ROOM, remote)
        self.acks: Any = None
        """Positions of the readers, once we are one of them."""
        rows = self._table()
        messages = Messages(
            self.endpoint, self.address, wanted, f"{self.name!r} of {self.pool.url}"
        )
        readers = Participants(self.pool, rows.seats, rows.rows)
        self.writer = self.writer_class(
            messages, readers, rows.address, rows.stride, skips, self.news
        )
        self.reader = self.reader_class(messages, self.room, skips)
        self.closed = False

    @property
    def lost(self) -> int:
        """Messages that were overwritten before this process received them."""
        return self.reader.lost

    def _table(self) -> Any:
        return Positions(
            self.manager, "acks", self, participants=self.pool.parameters.clients, join=False
        )

    # ---- the writer ---------------------------------------------------------------------------

    def send(self, item: Any, timeout: Seconds | None = None) -> None:
        """Send a message to all readers; waits for the slow ones, at most `timeout` seconds.

        1 round trip. Raises queue.Full, ValueTooLarge, ChannelFull (there is another writer).
        """
        data = self.encode(item)
        if HEAD + len(data) > self.size:
            raise ValueTooLarge(
                f"the message takes {HEAD + len(data)} bytes; {self.title()} has {self.size}"
            )
        deadline = None if timeout is None else deadline_of(True, timeout)
        wait: Wait | None = None
        while self._send(data, wait) != DONE:
            wait = wait or Wait(self.room, deadline)
            if not wait.pause():
                raise queue.Full

    def send_nowait(self, item: Any) -> None:
        """`send` without waiting for room."""
        self.send(item, 0)

    def _send(self, data: bytes, wait: Wait | None) -> int:
        """Write a message: DONE, or FULL."""
        self.enter()
        try:
            self._check_open()
            if wait is not None:
                wait.note()
            return self.writer.send(data)
        finally:
            self.leave()

    # ---- readers --------------------------------------------------------------------------------

    def subscribe(self, start: str = NOW) -> None:
        """Become a reader of messages from now on, or, with start="oldest", of all that are kept.

        `receive` does that, from now on, if it was not done before.
        """
        if start not in (NOW, OLD):
            raise ParameterError(f"start is {NOW!r} or {OLD!r}, not {start!r}")
        if self.acks is None:
            self.acks = self._table()
        self.enter()
        try:
            self._check_open()
            if self.reader.ident != self.client.ident:
                self._begin(start)
        finally:
            self.leave()

    def unsubscribe(self) -> None:
        """Stop being a reader; the writer does not wait for us any more."""
        if self.acks is not None:
            self.acks.resign()
            self.reader.ident = 0

    def _begin(self, start: str) -> None:
        self.acks.first = self.reader.messages.end()
        row = self.acks.row()
        self.reader.begin(self.client.ident, self.acks.address + row * self.acks.stride, start)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.title()} is closed")

    def receive(self, timeout: Seconds | None = None) -> Any:
        """The next message; waits for it, at most `timeout` seconds. Raises queue.Empty.

        1 round trip when it is there.
        """
        if self.acks is None:
            self.subscribe()
        deadline = None if timeout is None else deadline_of(True, timeout)
        wait: Wait | None = None
        while (data := self._receive(wait)) is None:
            wait = wait or Wait(self.news, deadline)
            if not wait.pause():
                raise queue.Empty
        return self.decode(data)

    def receive_nowait(self) -> Any:
        """`receive` without waiting."""
        return self.receive(0)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.receive()

    def _receive(self, wait: Wait | None) -> Any:
        """The next message, as bytes; None: there is none."""
        self.enter()
        try:
            self._check_open()
            if self.reader.ident != self.client.ident:
                self._begin(NOW)
            if wait is not None:
                wait.note()
            return self.reader.next()
        finally:
            self.leave()

    def close(self) -> None:
        """Close this handle: sending and receiving by it raise ValueError from now on."""
        if not self.closed:
            self.closed = True
            self.manager.forget(self)
            # A ring that was removed, or lost, has nothing to give back.
            with contextlib.suppress(ChannelRemoved, NodeFailed):
                self.unsubscribe()
                self.enter()
                try:
                    self.writer.resign()
                finally:
                    self.leave()
