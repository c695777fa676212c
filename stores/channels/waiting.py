"""How a channel waits: it looks for a moment, and then sleeps in the kernel until it is woken.

That is an event count, one word in shared memory
    bit 0       SLEEPERS   a client may be asleep
    bit 1       WOKEN      `wake_one` has woken a client that has not come to look yet
    bits 2-31   count of wakes; the kernel compares the lower half of the word

A waiter:    token = prepare(); look once more; sleep(token); prepare(); look...
A changer:   changes the word that others look at, by an atomic verb; wake() or wake_one()

Between `prepare` and the second look the bit is set, by CAS; so either that look sees the change,
or the change's `wake` sees the bit, counts up, and the kernel does not let the waiter fall asleep.

As long as WOKEN is set, `wake_one` wakes no client: on few cores it takes a while until the woken
client runs, and clients that each change would wake meanwhile would find no work. The next
`prepare` clears WOKEN, before the look that sees all changes until then. So a client that was
woken, and leaves elements for others, has to call `wake_one` itself.

A kill of a client before its `wake`, or of the client that it woke, costs time only: a sleep is no
longer than SLEEP_US, and the sleeper then clears WOKEN. So does a bit that a dead client has left:
an idle `wake` is one system call.

A wake is in the background: one look at the word, posted when the change has been made. A client
whose change and whose event count are on one node posts the look behind the change (`post_look`,
then `wake_if` or `wake_one_if` with what it found), and needs no exchange of its own for it.

`Wait` is the loop of a waiting thread, the same for all channels:

    wait = Wait(waiting, deadline)
    while True:
        an operation: wait.note(); look, and return what was found
        wait.pause(), which raises, or returns False, when the time is over

Timeouts are as threading and queue take them (`deadline_of`, `deadline_after`).
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable
from typing import Any

from limpet.shm.errors import AddressError, ParameterError, PoolClosed
from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels.layout import (
    POLL_US,
    SLEEP_US,
    SLEEPERS,
    SPIN,
    SPINS,
    WAKE,
    WAKE_FLAGS,
    WOKEN,
    YIELD,
)
from limpet.stores.channels.phases import cas_alone, load_alone

EVERYBODY = 0x7FFF_FFFF
now: Callable[[], float] = time.monotonic
"""The clock of deadlines. The simulator has its own (fault/explore/sim_channels.py)."""


def spin(endpoint: Any, look: int) -> bool:
    """Wait a moment before look number `look` (1, 2...), after some looks by yielding the core;
    False: it is time to sleep. Outside of operations."""
    if look > SPINS:
        return False
    endpoint.pause(min(look, SPIN) if look <= SPINS // 2 else YIELD)
    return True


class Waiting:
    """Sleeping and waking by the word at `address`."""

    def __init__(self, endpoint: Any, address: int, remote: bool, parties: int = 0) -> None:
        """`remote`: clients of other hosts may be waited for. `parties`: so many clients wait for
        each other; where there are fewer cores, a client sleeps at once."""
        self.endpoint = endpoint
        self.address = address
        self.sleep_us = POLL_US if remote else SLEEP_US
        self.spins = parties <= len(os.sched_getaffinity(0))

    def spin(self, look: int) -> bool:
        """As `spin`."""
        return self.spins and spin(self.endpoint, look)

    def prepare(self) -> int:
        """Note that we are about to sleep. In an operation; look again before `sleep`. 2 round
        trips, or 1 if another client has noted the same."""
        while True:
            word = load_alone(self.endpoint, self.address)
            token = word & ~WOKEN | SLEEPERS
            if word == token:
                return token
            # ORDER: WOKEN is cleared before we look: a change after that wakes another client.
            if cas_alone(self.endpoint, self.address, word, token) == word:
                # CRASH(woken): WOKEN is cleared, and the client that was woken is dead; the others
                # look after SLEEP_US.
                return token

    def sleep(self, token: int, timeout_us: int) -> None:
        """Sleep until another client wakes us, `timeout_us` or SLEEP_US. Outside of operations."""
        try:
            self.endpoint.futex_wait(self.address, token, min(timeout_us, self.sleep_us))
        except AddressError as error:
            raise PoolClosed("the pool was closed while this thread waited") from error

    def post_look(self) -> int:
        """Post the look of `wake` or `wake_one`, after a change by an atomic verb that was posted
        before on the same node, or was waited for; its ticket."""
        return self.endpoint.post_load(self.address)

    def look(self) -> int:
        """The word, in the background: as `post_look`, and its result."""
        scope = self.endpoint.background(True)
        word = load_alone(self.endpoint, self.address)
        self.endpoint.background(scope)
        return word

    def wake(self) -> None:
        """Wake all sleepers, after a change by an atomic verb."""
        self.wake_if(self.look())

    def wake_if(self, word: int) -> None:
        """As `wake`, after a look that found this word."""
        if word & SLEEPERS:
            scope = self.endpoint.background(True)
            # If the CAS fails, the client that changed the word has woken them.
            counted = (word & ~WAKE_FLAGS) + WAKE & 0xFFFF_FFFF
            if cas_alone(self.endpoint, self.address, word, counted) == word:
                self.endpoint.futex_wake(self.address, EVERYBODY)
            self.endpoint.background(scope)

    def wake_one(self) -> None:
        """Wake one sleeper, after a change that only one of them can use."""
        self.wake_one_if(self.look())

    def wake_one_if(self, word: int) -> None:
        """As `wake_one`, after a look that found this word."""
        if word & WAKE_FLAGS == SLEEPERS:
            scope = self.endpoint.background(True)
            counted = (word | WAKE_FLAGS) + WAKE & 0xFFFF_FFFF
            # SLEEPERS stays, for the others, until no client is found asleep.
            # CRASH(waking): WOKEN is set, and no client was woken; the next sleeper clears it.
            seen = cas_alone(self.endpoint, self.address, word, counted)
            if seen == word and not self.endpoint.futex_wake(self.address, 1):
                # ORDER: the word has changed if a client has noted since that it will sleep.
                cas_alone(self.endpoint, self.address, counted, counted & ~WAKE_FLAGS)
            self.endpoint.background(scope)


class Wait:
    """One thread's wait for a change: it looks for a moment, and then sleeps between its looks."""

    def __init__(self, waiting: Waiting, deadline: float | None) -> None:
        self.waiting = waiting
        self.deadline = deadline
        self.looks = 0
        self.sleepy = False
        """Whether it sleeps after its next look."""
        self.token = 0
        """The word that it has noted before its last look, to sleep on; 0: it does not sleep."""
        self.slept = False
        """Whether it has slept: then it was perhaps woken, and other clients were not."""

    def note(self) -> None:
        """In the operation of a look, before the look: note that this client is about to sleep."""
        self.token = self.waiting.prepare() if self.sleepy else 0

    def pause(self, most_us: int = SLEEP_US) -> bool:
        """After a look in vain, outside of operations: wait a moment, or sleep, at most `most_us`;
        False: the time was over before."""
        left = still_us(self.deadline)
        if not left:
            return False
        if self.token:
            self.waiting.sleep(self.token, min(left, most_us))
            self.slept = True
        else:
            self.looks += 1
            self.sleepy = not self.waiting.spin(self.looks)
        return True


def deadline_of(block: bool, timeout: Seconds | None) -> float | None:
    """The end of the wait, by the monotonic clock; None: none. Arguments as of queue.Queue."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    seconds = seconds_of("timeout", timeout)
    if seconds < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return now() + seconds if seconds > 0 else 0.0


def deadline_after(timeout: Seconds | None) -> float | None:
    """The same for a timeout as threading's objects take it."""
    if timeout is None:
        return None
    seconds = seconds_of("timeout", timeout)
    return now() + seconds if seconds > 0 else 0.0


def still_us(deadline: float | None) -> int:
    """Microseconds until the deadline; 0: it is over."""
    if deadline is None:
        return SLEEP_US
    left = deadline - now() if deadline else 0.0
    return int(min(left * 1e6, SLEEP_US)) + 1 if left > 0 else 0


def whole(what: str, number: Any, low: int, high: int) -> int:
    """A whole number, of any type, as an int; ParameterError if it is not from `low` to `high`."""
    try:
        found = operator.index(number)
    except TypeError:
        found = low - 1
    if not low <= found <= high:
        raise ParameterError(f"{what} is a whole number from {low} to {high}, not {number!r}")
    return found
