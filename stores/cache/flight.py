"""Single flight: of all callers in all processes that miss a key, one computes it.

The flight is a word in the head of the entry: the client that computes and a number, or 0. For a
missing key, the caller inserts a PENDING entry, without a value. A caller begins a flight by a CAS
of that word from 0, or from a dead client's, to its own. All other callers see it there, and wait.
To take over from a dead client needs no recovery: a caller tests the client's life lock
(shm/clients/liveness.py), which takes one look.

The caller's value replaces the entry only if that still has the caller's flight. So if another
caller has set or deleted the key in the meantime, that change stays, even if a third caller, of
this process, computes the key by then. The computed value may have been invalidated since its
flight began: its `birth` is of that beginning (validity.py), so it is not served.

A caller that a signal handler cuts off ends its flight: it has noted it before it began (`note`).
A forked child has none of its parent's flights, as the word names the client: what it computes, or
gives up, in a fork of a computation changes nothing.

A computation that waits for its own key would wait for itself. So each is noted in the context of
its thread or task (contextvars), which the tasks that it starts have, too.

A kill leaves behind: an entry with the flight of a dead client. The next caller takes it over. If
none comes, a PENDING entry expires after `patience`, and any other with its value.
"""

from __future__ import annotations

import contextvars
import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.shm.endpoint import forks
from limpet.shm.errors import ReentrantUse
from limpet.stores.cache.layout import (
    EARLY_SHIFT,
    HITS,
    LANDED,
    MINE,
    MISSES,
    OTHERS,
    pilot_of,
)
from limpet.stores.cache.validity import Terms
from limpet.stores.channels.waiting import still_us

if TYPE_CHECKING:
    from limpet.stores.cache.store import CacheStore

EARLY_MAX: Final = 1 << 20


class Seat(NamedTuple):
    """The next step of a caller: to return `value`, or, if the flight is `mine`, to compute.

    `flight`: its own; 0: it has none, and has waited long enough. `birth`: of the value.
    """

    mine: bool
    value: Any
    birth: int
    flight: int


class Computation:
    """A call that may compute the value of a key. `note`: has its flight (`begin_flight`).

    `shown`: the key, as its caller knows it.
    """

    def __init__(self, store: CacheStore, key: bytes, shown: object, patience: int) -> None:
        self.whose = (store.pool.uuid, store.entry_number, store.entry_word, key)
        self.shown = shown
        self.store = store
        self.key = key
        self.patience = patience
        self.note = Terms(patience)
        self.note.miss = True
        self.forks = forks.count
        self.runs = False
        self.around: Computation | None = None
        """The one that runs around this one."""

    def begin(self) -> float:
        """The function is called now: the time."""
        self.around = _innermost.get()
        self.runs = True
        _innermost.set(self)
        return time.monotonic()

    def end(self) -> None:
        """The function has returned or raised, or was not called. May be called twice."""
        self.runs = False
        if _innermost.get() is self:
            _innermost.set(self.around)

    def abandon(self) -> None:
        """It ends without a value; the next caller may compute it."""
        self.end()
        if self.note.flight:
            self.store.abandon_flight(self.key, self.note.flight)

    def require_other(self) -> None:
        """Before a wait: raise ReentrantUse if this process computes that key around this call."""
        around = _innermost.get()
        while around is not None:
            if around.runs and around.forks == forks.count and around.whose == self.whose:
                raise ReentrantUse(
                    f"{self.store.pool.url}: the computation of {self.shown!r} asks the cache "
                    f"{self.store.name!r} for its own key, and would wait for itself; have it "
                    "compute that without the cache, or under another key"
                )
            around = around.around


_innermost: contextvars.ContextVar[Computation | None] = contextvars.ContextVar(
    "limpet's innermost computation", default=None
)


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
    """The flights of a cache, for callers of this process. `decode`: bytes to values."""

    def __init__(self, store: CacheStore, decode: Callable[[bytes], Any] = bytes) -> None:
        self.store = store
        self.decode = decode

    def board(self, call: Computation, early: float = 0.0) -> Seat:
        """Wait for the value of a key, or have its flight. `early`: see `earliness`."""
        end = time.monotonic() + call.patience / 1000
        dead, token, margin = 0, 0, earliness(early)
        while True:
            seat, other = self._next_step(call, dead, end, margin)
            if seat is not None:
                return seat
            dead = self._dead(other) if other else 0
            if other and not dead:
                call.require_other()
                if token:
                    self.store.landing(call.key).sleep(token, still_us(end))
                token = self.store.expect_landing(call.key)

    async def board_async(self, call: Computation, early: float = 0.0) -> Seat:
        """As `board`, for a task of an event loop (channels/task_waits.py)."""
        # Not at the top: few programs have tasks.
        from limpet.stores.channels.task_waits import sleep

        end = time.monotonic() + call.patience / 1000
        dead, token, margin = 0, 0, earliness(early)
        while True:
            seat, other = self._next_step(call, dead, end, margin)
            if seat is not None:
                return seat
            dead = self._dead(other) if other else 0
            if other and not dead:
                call.require_other()
                if token:
                    await sleep(self.store.landing(call.key), token)
                token = self.store.expect_landing(call.key)

    def _next_step(
        self, call: Computation, dead: int, end: float, margin: int
    ) -> tuple[Seat | None, int]:
        """The next step, or None and the flight to wait for; 0: look again at once."""
        how, data, birth, flight = self.store.begin_flight(
            call.key, dead, call.patience, margin, call.note
        )
        if how == MINE:
            return Seat(True, None, birth, flight), 0
        if data is not None:
            try:
                seat = Seat(False, self.decode(data), 0, 0)
            except (AttributeError, ImportError):
                # A miss: this program does not have the class of the value, or not any more.
                if how == LANDED:
                    self._forget(call.key, data)
                    return None, 0
            else:
                if how == OTHERS:
                    self.store.count_request(HITS)
                return seat, 0
        if time.monotonic() >= end:
            self.store.count_request(MISSES)
            return Seat(True, None, 0, 0), 0
        return None, flight

    def _forget(self, key: bytes, data: bytes) -> None:
        """Delete an entry that has still this value."""
        found = self.store.entry(key)
        if found is not None and found[0] == data:
            self.store.delete_as(key, found[1])

    def _dead(self, flight: int) -> int:
        """The flight, if its client is dead; 0: that lives."""
        pool = self.store.pool
        lives = pool.exclusively(lambda: pool.membership.lives(pilot_of(flight)))
        return 0 if lives else flight
