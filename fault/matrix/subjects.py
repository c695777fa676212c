"""Subjects of the drills with stopped clients: every kind of store, and every channel.

A subject is opened by name in a pool, and gives turns: `write` and `read` come back in bounded time
as long as no client keeps what they need. Every kind of store is a subject; a channel is registered
in CHANNELS, or, if it is only a part of others, named in PARTS.
"""

from __future__ import annotations

import abc
import contextlib
import queue
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.errors import ChannelFull, StoreFull
from limpet.stores.channels.sst import SST
from limpet.stores.registry import KINDS

KEYS: Final = 6
"""Few keys, so that clients meet."""
CAPACITY: Final = 1000
PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {"rcuckoo": {"rows_per_lock": 1}}
"""Parameters of stores with many locks, so that a client at work elsewhere meets no lock here."""
CHANGES: Final = 2 * KEYS
"""The number of a turn that changes memory in every state."""
PHASE_S: Final = 3.0
TURN_S: Final = 1.0
"""A turn that waits for others gives up after this."""
PARTS: Final = frozenset(
    {"owned_var", "atomic_var", "shared_region", "rendezvous", "power_controller"}
)
"""Channels without waiting clients that are parts of other channels, or an example."""


class Subject(abc.ABC):
    """One opened subject, in one process."""

    @abc.abstractmethod
    def write(self, number: int) -> None:
        """Make a change. Turn number `number`, from 0 on."""

    @abc.abstractmethod
    def read(self, number: int) -> None:
        """Read data that others change."""

    def elsewhere(self, number: int) -> None:
        """Make a change that shares no memory with `write`, if there is one."""
        self.write(number)


class StoreSubject(Subject):
    """Changes and reads of a few keys of a store.

    `phased`: in every other phase all clients insert one key, and soon nothing changes any more but
    the holder of its lock: two operations look alike then.
    """

    phased = False
    longest = 12
    """How often a value repeats the number of its turn, at most."""
    tolerated: tuple[type[Exception], ...] = (KeyError, StoreFull)
    """A key that is there, or is not; or no room, as a stopped client keeps memory from use."""

    def __init__(self, pool: Any, kind: str) -> None:
        profile = profile_of(kind)
        given = {"capacity": CAPACITY, **profile.parameters, **PARAMETERS.get(kind, {})}
        self.store = pool.store(kind, name="subject", **given)
        self.keys = [b"key-%d" % number for number in range(KEYS)]
        self.random = random.Random(pool.client_id)

    def write(self, number: int) -> None:
        key = self.keys[number % KEYS]
        value = b"%d" % number * self.random.randrange(1, self.longest)
        with contextlib.suppress(*self.tolerated):
            if self.phased and int(time.monotonic() / PHASE_S) % 2:
                self.store.insert(self.keys[0], value)
                return
            match number // KEYS % 4:
                case 0:
                    self.store.insert(key, value)
                case 1:
                    self.store.update(key, value)
                case 2:
                    self.store.put(key, value)
                case _:
                    self.store.delete(key)

    def read(self, number: int) -> None:
        key = self.keys[number % KEYS]
        self.store.get(key)
        # A get of race has no pin (glance.py), and no step at which a client could stop.
        self.store.get_many([key])

    def elsewhere(self, number: int) -> None:
        with contextlib.suppress(StoreFull):
            self.store.put(b"elsewhere", b"%d" % number)


class LockSubject(Subject):
    """A lock that is taken and given back."""

    def __init__(self, pool: Any) -> None:
        self.lock = pool.lock("subject")

    def write(self, number: int) -> None:
        with self.lock:
            pass

    def read(self, number: int) -> None:
        self.lock.locked()


class ConditionSubject(Subject):
    """A condition without waiters."""

    def __init__(self, pool: Any) -> None:
        self.condition = pool.condition("subject")

    def write(self, number: int) -> None:
        with self.condition:
            self.condition.notify_all()

    def read(self, number: int) -> None:
        self.condition.lock.locked()


class QueueSubject(Subject):
    """A short queue: a turn puts one element and gets one."""

    def __init__(self, pool: Any) -> None:
        self.queue = pool.queue("subject", 3)

    def write(self, number: int) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put(number, timeout=TURN_S)
        with contextlib.suppress(queue.Empty):
            self.queue.get_nowait()

    def read(self, number: int) -> None:
        self.queue.qsize()


class RingSubject(Subject):
    """A ring whose readers may miss messages: its writer waits for none of them."""

    def __init__(self, pool: Any) -> None:
        self.ring = pool.ring("subject", 4096, overrun="skip")
        self.follows = False

    def write(self, number: int) -> None:
        if self.follows:
            self.read(number)
            return
        try:
            self.ring.send(number, timeout=TURN_S)
        except ChannelFull:  # another client sends
            self.read(number)

    def read(self, number: int) -> None:
        if not self.follows:
            self.ring.subscribe()
            self.follows = True
        with contextlib.suppress(queue.Empty):
            self.ring.receive_nowait()


class CounterSubject(Subject):
    """A counter that is added to."""

    def __init__(self, pool: Any) -> None:
        self.counter = pool.counter("subject")

    def write(self, number: int) -> None:
        self.counter.add()

    def read(self, number: int) -> None:
        assert isinstance(self.counter.value, int)


class ArraySubject(Subject):
    """An array of numbers that are added to."""

    def __init__(self, pool: Any) -> None:
        self.array = pool.array("subject", KEYS, "d")

    def write(self, number: int) -> None:
        self.array.add(number % KEYS, 1.0)

    def read(self, number: int) -> None:
        assert self.array[number % KEYS] >= 0


class EventSubject(Subject):
    """An event that is set and cleared."""

    def __init__(self, pool: Any) -> None:
        self.event = pool.event("subject")

    def write(self, number: int) -> None:
        if number % 2:
            self.event.clear()
        else:
            self.event.set()

    def read(self, number: int) -> None:
        self.event.wait(0.001)


class BarrierSubject(Subject):
    """A barrier of one party: a turn is a round. (More would wait for each other by design.)"""

    def __init__(self, pool: Any) -> None:
        self.barrier = pool.barrier(f"subject {pool.client_id}", 1, on_death="continue")

    def write(self, number: int) -> None:
        self.barrier.wait(TURN_S)

    def read(self, number: int) -> None:
        assert not self.barrier.broken


class SstSubject(Subject):
    """A table of registers, of which each participant writes its own."""

    def __init__(self, pool: Any) -> None:
        participants = pool.parameters.clients
        self.table = pool.channels.open(SST, "subject", participants=participants)

    def write(self, number: int) -> None:
        self.table.store_mine(number)
        self.table.push_broadcast()

    def read(self, number: int) -> None:
        for variable in self.table:
            variable.peek()


CHANNELS: Final[Mapping[str, Callable[[Any], Subject]]] = {
    "lock": LockSubject,
    "condition": ConditionSubject,
    "queue": QueueSubject,
    "ring": RingSubject,
    "counter": CounterSubject,
    "array": ArraySubject,
    "event": EventSubject,
    "barrier": BarrierSubject,
    "sst": SstSubject,
}
SUBJECTS: Final = (*KINDS, *CHANNELS)


def opened(pool: Any, name: str) -> Subject:
    """The subject of that name, by this handle of the pool."""
    make = CHANNELS.get(name)
    return StoreSubject(pool, name) if make is None else make(pool)


def pool_sizes(name: str) -> dict[str, Any]:
    """Sizes of a pool for a subject: those of the crash matrix, with ample memory."""
    profile = profile_of(name)
    return {"nodes": profile.matrix_nodes, "node_size": max(profile.matrix_node_size, 8 << 20)}
