"""A lock that goes with a key of a cache: `cache.lock(key)`.

It is the flight (flight.py) of an entry of its own, which never gets a value: the client that has
the flight has the lock. So a lock takes as much memory as a small entry, while it is held, and none
otherwise; and a waiting client takes it over at once when the client that has it is dead. No
operation on the key itself waits for it.

A flight names its client, so a forked child has none of its parent's locks, and frees none.

It is there to spare work, as is the cache: after its `ttl` another client may take it, `clear`
frees it, and so does an eviction when locks are all that the cache has. `pool.lock` is exact.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint import forks
from limpet.shm.errors import ParameterError
from limpet.shm.times import MS, Seconds, seconds_of
from limpet.stores.cache.layout import MINE, pilot_of
from limpet.stores.cache.validity import Terms
from limpet.stores.channels.waiting import still_us
from limpet.stores.core.names import shown

if TYPE_CHECKING:
    from limpet.stores.cache.store import CacheStore

PREFIX: Final = b"\xff\0lock\0"
"""Before the bytes of a key: no codec but "bytes" makes a key that begins so."""


class CacheLock:
    """As threading.Lock: any thread may release it, by the object that has acquired it.

    A thread that has acquired it releases its own: when its `ttl` is over, that of no other thread.
    """

    def __init__(self, store: CacheStore, key: bytes, ttl_ms: int) -> None:
        self.store = store
        self.key = PREFIX + key
        self.ttl_ms = ttl_ms
        self.flights: dict[tuple[int, int], int] = {}
        """By `forks.count` and the thread that acquired it."""

    @property
    def ttl(self) -> float:
        """Seconds after which another client may take it."""
        return self.ttl_ms / MS

    def acquire(self, blocking: bool = True, timeout: Seconds = -1) -> bool:
        """Have the lock; False: another client has it, and `timeout` seconds are over."""
        note = Terms(self.ttl_ms)
        ended = False
        try:
            taken = self._take(note, blocking, seconds_of("timeout", timeout))
            ended = True
        finally:
            if not ended and note.flight:
                self.store.abandon_flight(self.key, note.flight)
        if taken:
            self.flights[forks.count, threading.get_ident()] = note.flight
        return taken

    def _take(self, note: Terms, blocking: bool, timeout: float) -> bool:
        """`acquire`; `note.flight` is the flight that it has begun, also when it is cut off."""
        end = time.monotonic() + timeout
        dead = token = 0
        while True:
            how, _, _, flight = self.store.begin_flight(self.key, dead, self.ttl_ms, 0, note)
            if how == MINE:
                return True
            if not self._lives(flight):
                dead = flight
                continue
            if not blocking or (timeout >= 0 and time.monotonic() >= end):
                return False
            if token:
                left = still_us(end if timeout >= 0 else None)
                self.store.landing(self.key).sleep(token, left)
            token = self.store.expect_landing(self.key)

    def end(self) -> bool:
        """Give the lock back; False: it was not acquired by this process, or its time is over."""
        flight = self.flights.pop((forks.count, threading.get_ident()), 0)
        if not flight:
            for taken in list(self.flights):
                if taken[0] == forks.count:
                    flight = self.flights.pop(taken, 0)
                    break
        return flight != 0 and self.store.abandon_flight(self.key, flight)

    def release(self) -> None:
        """Give the lock back. ParameterError: this process does not have it, or not any more."""
        if not self.end():
            raise ParameterError(
                f"{self.store.pool.url}: {self!r} is not held by this process; its ttl of "
                f"{self.ttl:g} s may be over"
            )

    def locked(self) -> bool:
        """Whether a living client has it."""
        flight = self.store.flight_of(self.key)
        return flight != 0 and self._lives(flight)

    def _lives(self, flight: int) -> bool:
        pool = self.store.pool
        return bool(pool.exclusively(lambda: pool.membership.lives(pilot_of(flight))))

    def __enter__(self) -> CacheLock:
        self.acquire()
        return self

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lock {shown(self.key[len(PREFIX) :])} of the cache {self.store.name!r}>"
