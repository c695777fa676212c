"""The topic: many processes publish messages, and each subscription gets all from its beginning on.

The messages are in cells (cells.py): message n in cell n modulo their number. Its own region
    0     end      the number of the next message
    8     changes  that were begun
    64    news     where subscribers sleep (waiting.py)
The last `size` messages are kept, and memory is bounded by that. To publish is to write the cell
of message `end`, with the lock, and then to raise `end`, by one store.

A subscription is a number in its process: that of its next message. It is in no shared memory, so
no publisher waits for a reader, however slow it is, and a dead reader leaves nothing. A reader has
read message n if `end` is at most n + size afterwards; else the cell is another message's, or about
to be, and the subscription goes on at the oldest message that is kept, and counts those it missed.

Order. All subscriptions get the messages in one order, that in which `publish` took effect.

A kill leaves behind: what cells.py says; a message that was not published, or one that was, and
whose sleeping readers look after SLEEP_US.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Final

from limpet.shm.errors import ChannelRemoved, ParameterError, StoreCorrupt
from limpet.shm.times import Seconds
from limpet.stores.channels.cells import ITEM_SIZE, SIZE, Cells
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.waiting import Waiting, deadline_of, still_us

END_MAX: Final = 1 << 62
NOW: Final = "now"
OLDEST: Final = "oldest"


class Subscription:
    """The messages of a topic from some message on, for a thread of this process, or several."""

    def __init__(self, topic: Topic, position: int) -> None:
        self.topic = topic
        self.position = position
        """The number of its next message."""
        self.lost = 0
        """How many messages it has missed, since they were kept no more."""

    def get(self, block: bool = True, timeout: Seconds | None = None) -> Any:
        """The next message; waits for it, at most `timeout` seconds. Raises queue.Empty.

        If messages were missed before it, `lost` is higher by their number than before.
        """
        return self.topic.receive(self, deadline_of(block, timeout))

    def get_nowait(self) -> Any:
        """`get` without waiting."""
        return self.get(False)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.get()

    def __repr__(self) -> str:
        return f"<Subscription at message {self.position} of {self.topic!r}, {self.lost} missed>"


class Topic(Cells):
    """Messages of many publishers for many subscribers: `pool.topic`."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        size: int = SIZE,
        item_size: int = ITEM_SIZE,
        codec: str = "pickle",
    ) -> None:
        """`size`: so many messages are kept. `item_size`: an encoded message of up to so many bytes
        lies in its cell, a larger one in an object of the pool."""
        super().__init__(manager, name, parent, 2 * LINE, size, item_size, codec, kind="topic")
        self.news = Waiting(self.endpoint, self.address + LINE, self.pool.parameters.multi_host)

    def publish(self, item: Any) -> int:
        """Publish a message; its number, from 0 on. Waits for no subscriber. 4 round trips, with
        those of the lock.

        Raises ValueTooLarge, StoreFull (no memory for a large one): then it is not published.
        """
        data = self._encoded(item)
        number = -1
        while number < 0:
            self._begin()
            try:
                number = self._publish(data)
            finally:
                self._finish()
            if number < 0:
                self._replenish(data)
        return number

    def _publish(self, data: bytes) -> int:
        """Publish an encoded message; its number, or -1: no object is ready for it."""
        end = self._end()
        self._count_up()
        cell = end % self.count
        if not self._write(cell, data):
            return -1
        # ORDER: after all of the message. By an atomic verb, before the look at `news`.
        # LINEARIZES: it is published.
        # CRASH(published): sleepers look after a while.
        self.endpoint.post_swap(self.address, end + 1)
        look = self.news.post_look()
        self.endpoint.wait()
        self._written(cell, data)
        self.news.wake_if(self.endpoint.result(look))
        return end

    def subscribe(self, start: str = NOW) -> Subscription:
        """The messages from now on, or, with start="oldest", from the oldest that is kept."""
        if start not in (NOW, OLDEST):
            raise ParameterError(f"start is {NOW!r} or {OLDEST!r}, not {start!r}")
        end = self.published()
        return Subscription(self, end if start == NOW else max(0, end - int(self.size)))

    def published(self) -> int:
        """How many messages were ever published."""
        self.enter()
        try:
            return self._end()
        finally:
            self.leave()

    def _end(self) -> int:
        """The number of the next message. 1 round trip. Raises StoreCorrupt."""
        self._read_head()
        return self._sane(self.head[0])

    def _sane(self, end: int) -> int:
        """This end. Raises StoreCorrupt if it cannot be one."""
        if end > END_MAX:
            raise StoreCorrupt(
                f"{self.name!r} of {self.pool.url} has an end that cannot be: memory was damaged; "
                "remove it, and make it anew"
            )
        return end

    def receive(self, reader: Subscription, deadline: float | None) -> Any:
        """The next message of a subscription; as `Subscription.get`."""
        looks = token = 0
        sleepy = False
        data = None
        while True:
            self.enter()
            try:
                if sleepy:
                    token = self.news.prepare()
                data = self._next(reader)
            finally:
                self.leave()
            if data is not None:
                return self.decode(data)
            left = still_us(deadline)
            if not left:
                raise queue.Empty
            if token:
                self.news.sleep(token, left)
            else:
                looks += 1
                sleepy = not self.news.spin(looks)

    def _next(self, reader: Subscription) -> Any:
        """The next message of a subscription, as bytes; None: there is none. In an operation. 1
        round trip, if none was missed, and one more for a large message."""
        endpoint = self.endpoint
        while True:
            position = reader.position
            cell = position % self.count
            before = endpoint.post_load(self.address)
            # ORDER: after `end`, which says that the message is there.
            self._post_cell(cell)
            # ORDER: after the message: its cell is written anew only when `end` is beyond this.
            after = endpoint.post_load(self.address)
            endpoint.wait()
            end = self._sane(endpoint.result(before))
            if end > self.size and position < end - self.size:
                reader.lost += end - self.size - position
                reader.position = end - self.size
                continue
            if position >= end:
                return None
            end = self._sane(endpoint.result(after))
            if end > position + self.size:
                continue
            whole = self._is_whole()
            data = self._element(cell)
            if not whole:
                end = self._end()
            if end <= position + self.size:
                if data is None:
                    # The process that removes it has freed it.
                    raise ChannelRemoved(f"{self.name!r} of {self.pool.url} was removed")
                reader.position = position + 1
                return data
