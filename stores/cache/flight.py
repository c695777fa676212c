"""Single flight: of all callers in all processes that miss a key, one computes it.

The flight is a word in the head of the entry: the client that computes, or 0. An entry that was not
there is put there as PENDING, without a value. A caller begins a flight by a CAS of that word from
0, or from a client that is dead, to its own client; all others see whose it is, and wait. To take
over from a dead client needs no recovery: whether it lives is asked of its life lock
(shm/clients/life_locks.py), so that takes as long as one look.

The value replaces the entry only if the flight is still its client's. So a value that another
client has set, or deleted the key of, in the meantime stays. What a client computed may have been
invalidated since it began: its `birth` is the beginning (validity.py), so it is not served.

A kill leaves behind: an entry whose flight is a dead client's. The next caller takes it over.
Without one it expires after `patience`, if it is PENDING, and else with its value.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.stores.cache.status import LANDED, MINE

if TYPE_CHECKING:
    from limpet.stores.cache.store import CacheStore

PAUSE_S: Final = 0.0002
PAUSE_MAX_S: Final = 0.005


class Seat(NamedTuple):
    """What a caller has to do: to return `data`, or, if it is `mine`, to compute.

    `flies`: it has the flight; else it has waited for long enough. `birth`: of the value.
    """

    mine: bool
    data: bytes
    birth: int
    flies: bool


class Flights:
    """The flights of a cache, for callers of this process."""

    def __init__(self, store: CacheStore) -> None:
        self.store = store

    def board(self, key: bytes, patience: int) -> Seat:
        """Wait for the value of a key, or have its flight."""
        end = time.monotonic() + patience / 1000
        dead, pause = 0, PAUSE_S
        while True:
            seat, pilot = self._look(key, dead, patience, end)
            if seat is not None:
                return seat
            dead = self._dead(pilot)
            if not dead:
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)

    async def board_async(self, key: bytes, patience: int) -> Seat:
        """As `board`, for an event loop, which goes on meanwhile."""
        end = time.monotonic() + patience / 1000
        dead, pause = 0, PAUSE_S
        while True:
            seat, pilot = self._look(key, dead, patience, end)
            if seat is not None:
                return seat
            dead = self._dead(pilot)
            if not dead:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)

    def _look(self, key: bytes, dead: int, patience: int, end: float) -> tuple[Seat | None, int]:
        """What to do now, or None and the client to wait for."""
        how, data, number = self.store.begin_flight(key, dead, patience)
        if how == MINE:
            return Seat(True, b"", number, True), 0
        if how == LANDED or data is not None:
            return Seat(False, data, 0, False), 0
        if time.monotonic() >= end:
            return Seat(True, b"", 0, False), 0
        return None, number

    def _dead(self, pilot: int) -> int:
        """The client, if it is dead; 0: it lives."""
        pool = self.store.pool
        lives = pool.exclusively(lambda: pool.membership.lives(pilot))
        return 0 if lives else pilot

    def abandon(self, key: bytes, flies: bool) -> None:
        """This caller does not compute the value after all; the next one may."""
        if flies:
            self.store.abandon_flight(key)
