"""Subjects of the drills with several clients: every kind of store, and every channel with turns.

A subject is opened by name in a pool, and gives turns: `write` and `read` come back in bounded time
as long as no client keeps what they need. Every kind of store is a subject; so is a channel whose
row says what a turn is (channel_kinds.py).
"""

from __future__ import annotations

import abc
import contextlib
import random
import time
from collections.abc import Mapping
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.errors import StoreFull
from limpet.stores.registry import KINDS

KEYS: Final = 6
"""Few keys, so that clients meet."""
CAPACITY: Final = 1000
PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {"rcuckoo": {"rows_per_lock": 1}}
"""Parameters of stores with many locks, so that a client at work elsewhere meets no lock here."""
CHANGES: Final = 2 * KEYS
"""The number of a turn that changes memory in every state."""
PHASE_S: Final = 3.0


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


class ChannelSubject(Subject):
    """Turns of one of several clients of a channel."""

    def __init__(self, pool: Any, kind: str) -> None:
        self.channel = CHANNELS[kind]
        self.handle = (self.channel.shared or self.channel.open)(pool, "subject")

    def write(self, number: int) -> None:
        assert self.channel.turn is not None
        self.channel.turn(self.handle, number)

    def read(self, number: int) -> None:
        self.channel.read(self.handle, number)


TURNING: Final = tuple(kind for kind, channel in CHANNELS.items() if channel.turn is not None)
"""The channels of which several clients have turns."""
SUBJECTS: Final = (*KINDS, *TURNING)


def opened(pool: Any, name: str) -> Subject:
    """The subject of that name, by this handle of the pool."""
    return ChannelSubject(pool, name) if name in CHANNELS else StoreSubject(pool, name)


def pool_sizes(name: str) -> dict[str, Any]:
    """Sizes of a pool for a subject: those of the crash matrix, with ample memory."""
    profile = profile_of(name)
    return {"nodes": profile.matrix_nodes, "node_size": max(profile.matrix_node_size, 8 << 20)}
