"""The calls by which a program opens channels of a pool: `pool.lock`, `pool.queue` and so on.

Each opens the channel of a name, or makes it. Where a channel has parameters, those that are not
given are those of the channel that is there, or, for a new one, the usual ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from limpet.shm.errors import ParameterError, StoreMismatch
from limpet.shm.late import late
from limpet.shm.parameters import parse_size
from limpet.shm.times import LONGEST_S, US, Seconds, units_of

if TYPE_CHECKING:
    from limpet.stores.channels.array.array import Array
    from limpet.stores.channels.barrier.barrier import Barrier
    from limpet.stores.channels.condition import Condition
    from limpet.stores.channels.counter import Counter
    from limpet.stores.channels.deque import Deque
    from limpet.stores.channels.event import Event
    from limpet.stores.channels.holders.rwlock import RwLock
    from limpet.stores.channels.holders.semaphore import Semaphore
    from limpet.stores.channels.jobs.job_queue import JobQueue
    from limpet.stores.channels.lock.lock import Lock
    from limpet.stores.channels.manager import Manager
    from limpet.stores.channels.queue.shared_queue import SharedQueue
    from limpet.stores.channels.ring.ring_buffer import RingBuffer
    from limpet.stores.channels.topic import Topic

HERE: Final = "limpet.stores.channels."
JOBS: Final = "jobs"
"""The kind of a queue with acks, as the catalogue of channels has it."""


class ChannelCalls:
    """A part of `Pool`, which has the manager."""

    @property
    def channels(self) -> Manager:
        """The manager of this handle's channels."""
        raise NotImplementedError

    def barrier(
        self,
        name: str,
        parties: int,
        action: Callable[[], Any] | None = None,
        timeout: Seconds | None = None,
        *,
        on_death: str = "break",
    ) -> Barrier:
        """The barrier of that name, as `threading.Barrier`, for threads of any processes.

        When a participant dies, the others get BrokenBarrierError with its pid; with
        on_death="continue" they go on without it.
        """
        cls = late(HERE + "barrier.barrier").Barrier
        made: Barrier = self.channels.open(
            cls, name, parties=parties, action=action, timeout=timeout, on_death=on_death
        )
        return made

    def event(self, name: str) -> Event:
        """The event of that name, as `threading.Event`, for threads of any processes."""
        return self.channels.open(late(HERE + "event").Event, name)

    def counter(self, name: str) -> Counter:
        """The counter of that name, a signed number of 64 bits: 0 at first."""
        return self.channels.open(late(HERE + "counter").Counter, name)

    def array(
        self, name: str, shape: Any = None, dtype: Any = None, *, stripes: int | None = None
    ) -> Array:
        """The array of that name: made, of zeros, if it is not there, else attached to.

        `shape`: a whole number or a tuple of some. `dtype`: any of numpy with elements of a fixed
        size; int64 unless another one is given. `stripes`: at most so many parts along the first
        axis, in turn on the memory nodes; by default one, or, if it takes more than half of a node,
        one for each node. A parameter that is not given is that of the array that is there. Raises
        ParameterError (there is none, and no `shape`; or a node has no room for a stripe),
        StoreMismatch, StoreFull, NodeFailed.
        """
        return late(HERE + "array.array").open_array(self.channels, name, shape, dtype, stripes)

    def lock(
        self,
        name: str,
        *,
        recursive: bool | None = None,
        places: int | None = None,
        overtaking: bool | None = None,
    ) -> Lock:
        """The lock of that name, free if it was not there; as threading.Lock, among processes.

        Parameters: see `Lock`. One that is not given is that of the lock that is there. Raises
        StoreMismatch when one that is given differs from it.
        """
        module = late(HERE + "lock.lock")
        found: Lock = self.channels.attach(
            module.Lock,
            name,
            {"recursive": recursive, "places": places, "overtaking": overtaking},
            {"recursive": False, "places": module.PLACES, "overtaking": True},
        )
        return found

    def semaphore(self, name: str, value: int | None = None) -> Semaphore:
        """The semaphore of that name, with `value` permits, 1 unless another number is given, if it
        was not there; as threading.Semaphore, among processes.

        The permits of a process that dies are free again. Raises StoreMismatch when there is one
        with another `value`, or a bounded one.
        """
        return self._semaphore(name, value, False)

    def bounded_semaphore(self, name: str, value: int | None = None) -> Semaphore:
        """As `semaphore`; as threading.BoundedSemaphore: `release` raises ValueError if more than
        `value` permits would be free."""
        return self._semaphore(name, value, True)

    def _semaphore(self, name: str, value: int | None, bounded: bool) -> Semaphore:
        found: Semaphore = self.channels.attach(
            late(HERE + "holders.semaphore").Semaphore,
            name,
            {"value": value, "bounded": bounded},
            {"value": 1, "bounded": bounded},
        )
        return found

    def rwlock(self, name: str, *, prefer: str | None = None) -> RwLock:
        """The reader-writer lock of that name, free if it was not there: many threads of any
        processes read, or one writes. `prefer`: see `RwLock`; "writers" unless it is given.

        Raises StoreMismatch when there is one with another preference.
        """
        found: RwLock = self.channels.attach(
            late(HERE + "holders.rwlock").RwLock, name, {"prefer": prefer}, {"prefer": "writers"}
        )
        return found

    def condition(self, name: str) -> Condition:
        """The condition of that name, with a lock of its own, as `threading.Condition`, for threads
        of any processes."""
        return self.channels.open(late(HERE + "condition").Condition, name)

    @overload
    def queue(
        self,
        name: str,
        maxsize: int | None = None,
        *,
        item_size: int | None = None,
        codec: str | None = None,
        acks: Literal[False] | None = None,
    ) -> SharedQueue: ...

    @overload
    def queue(
        self,
        name: str,
        maxsize: int | None = None,
        *,
        item_size: int | None = None,
        codec: str | None = None,
        acks: Literal[True],
        max_deliveries: int | None = None,
        visibility_timeout: Seconds | None = None,
    ) -> JobQueue: ...

    def queue(
        self,
        name: str,
        maxsize: int | None = None,
        *,
        item_size: int | None = None,
        codec: str | None = None,
        acks: bool | None = None,
        max_deliveries: int | None = None,
        visibility_timeout: Seconds | None = None,
    ) -> SharedQueue | JobQueue:
        """The queue of that name: made if it is not there, else attached to. First in, first out.

        With `acks`, each element is delivered until it is acknowledged: the queue is a `JobQueue`,
        as without `acks` one that was made so is. Parameters: see
        `SharedQueue`, and `JobQueue`, which alone has the last two. One that is not given is that
        of the queue that is there. Raises StoreMismatch when one that is given differs from it.
        """
        usual = late(HERE + ("jobs.layout" if acks else "queue.layout"))
        given: dict[str, Any] = {"maxsize": maxsize, "item_size": item_size, "codec": codec}
        defaults: dict[str, Any] = {
            "maxsize": usual.MAXSIZE,
            "item_size": usual.ITEM_SIZE,
            "codec": "pickle",
        }
        cls = late(HERE + "queue.shared_queue").SharedQueue
        further: dict[str, Any] = {
            "max_deliveries": max_deliveries,
            "visibility_timeout": visibility_timeout,
        }
        if acks:
            cls = late(HERE + "jobs.job_queue").JobQueue
            if visibility_timeout is not None:
                # As the queue keeps it, for the comparison.
                us = units_of("`visibility_timeout`", visibility_timeout, US, LONGEST_S * US)
                further["visibility_timeout"] = us / US
            given |= further
            defaults |= {"max_deliveries": usual.MAX_DELIVERIES, "visibility_timeout": 0.0}
        elif any(value is not None for value in further.values()):
            raise ParameterError(f"only a queue with acks=True has {' and '.join(further)}")
        try:
            found: SharedQueue | JobQueue = self.channels.attach(cls, name, given, defaults)
        except StoreMismatch:
            if acks is not None or self.channels.kind_of(name) != JOBS:
                raise
            found = self.queue(name, maxsize, item_size=item_size, codec=codec, acks=True)
        return found

    def deque(
        self,
        name: str,
        maxlen: int | None = None,
        *,
        size: int | None = None,
        item_size: int | None = None,
        codec: str | None = None,
    ) -> Deque:
        """The deque of that name, empty if it was not there; as collections.deque, among processes.

        `maxlen`: as many elements are kept; another one takes the place of that at the other end.
        Without it, `size` elements have room, 1024 unless another number is given, and `append`
        raises queue.Full for more. `item_size`, `codec`: see `Deque`. A parameter that is not given
        is that of the deque that is there. Raises StoreMismatch when one that is given differs.
        """
        if maxlen is not None and size is not None:
            raise ParameterError("a deque has a `maxlen` or a `size`, not both")
        usual = late(HERE + "deque")
        found: Deque = self.channels.attach(
            usual.Deque,
            name,
            {
                "size": size if maxlen is None else maxlen,
                "bounded": True if maxlen is not None else None if size is None else False,
                "item_size": item_size,
                "codec": codec,
            },
            {"size": usual.SIZE, "bounded": False, "item_size": usual.ITEM_SIZE, "codec": "pickle"},
        )
        return found

    def ring(
        self,
        name: str,
        size: int | str | None = None,
        *,
        overrun: str | None = None,
        codec: str | None = None,
    ) -> RingBuffer:
        """The ring buffer of that name: a broadcast from one process, the writer, to all readers.

        Parameters: see `RingBuffer`. One that is not given is that of the ring that is there.
        Raises StoreMismatch when one that is given differs from it.
        """
        usual = late(HERE + "ring.layout")
        found: RingBuffer = self.channels.attach(
            late(HERE + "ring.ring_buffer").RingBuffer,
            name,
            {
                "size": None if size is None else parse_size(size),
                "overrun": overrun,
                "codec": codec,
            },
            {"size": usual.SIZE, "overrun": usual.BLOCK, "codec": "pickle"},
        )
        return found

    def topic(
        self,
        name: str,
        size: int | None = None,
        *,
        item_size: int | None = None,
        codec: str | None = None,
    ) -> Topic:
        """The topic of that name: a broadcast of messages from many processes to many.

        The last `size` messages are kept, 1024 unless another number is given; a slow subscriber is
        told how many it missed. Parameters: see `Topic`. One that is not given is that of the topic
        that is there. Raises StoreMismatch when one that is given differs from it.
        """
        usual = late(HERE + "topic")
        found: Topic = self.channels.attach(
            usual.Topic,
            name,
            {"size": size, "item_size": item_size, "codec": codec},
            {"size": usual.SIZE, "item_size": usual.ITEM_SIZE, "codec": "pickle"},
        )
        return found
