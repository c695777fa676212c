"""Single flight: of all callers in all processes that miss a key, one computes it.

The flight is a word in the head of the entry: the client that computes and a number, or 0. For a
missing key, the caller inserts a PENDING entry, without a value. A caller begins a flight by a CAS
of that word from 0, or from a dead client's, to its own. All other callers see it there, and wait.
To take over from a dead client needs no recovery: a caller tests the client's life lock
(shm/clients/life_locks.py), which takes one look.

The caller's value replaces the entry only if that still has the caller's flight. So if another one
has set or deleted the key in the meantime, that change stays, also when a third one, of this
process, computes the key by then. The computed value may have been
invalidated since the client began: its `birth` is the beginning (validity.py), so it is not served.

A kill leaves behind: an entry with the flight of a dead client. The next caller takes it over. If
none comes, a PENDING entry expires after `patience`, and any other with its value.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.stores.cache.layout import EARLY_SHIFT, pilot_of
from limpet.stores.cache.status import LANDED, MINE

if TYPE_CHECKING:
    from limpet.stores.cache.store import CacheStore

PAUSE_S: Final = 0.0002
PAUSE_MAX_S: Final = 0.005
EARLY_MAX: Final = 1 << 20


class Seat(NamedTuple):
    """The next step of a caller: to return `data`, or, if the flight is `mine`, to compute.

    `flight`: its own; 0: it has none, and has waited long enough. `birth`: of the value.
    """

    mine: bool
    data: bytes
    birth: int
    flight: int


def earliness(beta: float) -> int:
    """Draw how early a computation may begin, as `FlightWord.board` takes it; 0: not at all.

    XFetch (Vattani, Chierichetti and Lowenstein, "Optimal probabilistic cache stampede prevention",
    VLDB 2015): the time before the deadline is exponentially distributed, and `beta` times the time
    that a computation takes on average.
    """
    if not beta:
        return 0
    drawn = -beta * math.log(1.0 - random.random()) * (1 << EARLY_SHIFT)
    return max(1, min(int(drawn), EARLY_MAX))


class Flights:
    """The flights of a cache, for callers of this process."""

    def __init__(self, store: CacheStore) -> None:
        self.store = store

    def board(self, key: bytes, patience: int, early: float = 0.0) -> Seat:
        """Wait for the value of a key, or have its flight. `early`: see `earliness`."""
        end = time.monotonic() + patience / 1000
        dead, pause, margin = 0, PAUSE_S, earliness(early)
        while True:
            seat, other = self._look(key, dead, patience, end, margin)
            if seat is not None:
                return seat
            dead = self._dead(other)
            if not dead:
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)

    async def board_async(self, key: bytes, patience: int, early: float = 0.0) -> Seat:
        """As `board`, without blocking the event loop."""
        end = time.monotonic() + patience / 1000
        dead, pause, margin = 0, PAUSE_S, earliness(early)
        while True:
            seat, other = self._look(key, dead, patience, end, margin)
            if seat is not None:
                return seat
            dead = self._dead(other)
            if not dead:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)

    def _look(
        self, key: bytes, dead: int, patience: int, end: float, margin: int
    ) -> tuple[Seat | None, int]:
        """The next step, or None and the flight to wait for."""
        how, data, birth, flight = self.store.begin_flight(key, dead, patience, margin)
        if how == MINE:
            return Seat(True, b"", birth, flight), 0
        if how == LANDED or data is not None:
            return Seat(False, data, 0, 0), 0
        if time.monotonic() >= end:
            return Seat(True, b"", 0, 0), 0
        return None, flight

    def _dead(self, flight: int) -> int:
        """The flight, if its client is dead; 0: that lives."""
        pool = self.store.pool
        lives = pool.exclusively(lambda: pool.membership.lives(pilot_of(flight)))
        return 0 if lives else flight

    def abandon(self, key: bytes, flight: int) -> None:
        """This caller does not compute the value after all; the next one may."""
        if flight:
            self.store.abandon_flight(key, flight)
