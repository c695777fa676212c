"""The thread that sleeps for all tasks of this process, of any event loop.

A task that has to wait adds a *watch*: a word, the value that it has seen there, and what wakes the
task. The thread sleeps in the kernel at the words of all watches at once (futex_waitv, Linux 5.16),
and at one more, the *bell*, which tells it that watches were added or dropped. When a word has
another value than a watch has seen, the watch *fires*: it is taken away, and its task is woken in
its loop. Where the kernel has no such call, or forbids it, or the build is pure, the thread looks
at the words each POLL_US instead.

A thread serves as many words as the kernel takes, less one: 127. If tasks wait at more, there is
one thread for each 127 of them. A thread that has nothing to watch ends after LINGER_US. One that
an error ends fires all its watches: their tasks look for themselves, and begin another thread.

Once in a tick (TICK_US, or LOOK_US for each word if that is longer) the first watch of each word
fires `idle`: its task looks for itself, as a client that waits looks for the dead after SLEEP_US
(waiting.py). So 1,000 waits at one word cost one look in a tick. LOOK_US is several times a task's
look: the loop has time for its other tasks, and those that have looked are back before the tick.

A watch that its task has dropped stays in the kernel until the thread is back. A client that wakes
one sleeper may wake the thread for it meanwhile. So the thread hands such a wake on (`pass_on`).

All fields of a `Watcher` and of its watches are changed with the one lock of this module. A forked
child has none of its parent's watchers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.endpoint.fabric import BUILD, SLEEP_WORDS, sleep_at, wake_at
from limpet.shm.errors import LimpetError
from limpet.stores.channels.layout import POLL_US, SLEEP_US

HALF: Final = 0xFFFF_FFFF
TICK_US: Final = SLEEP_US
LOOK_US: Final = 200 if BUILD == "compiled" else 2000
POLLS: Final = 20
"""A thread that polls sleeps LOOK_US / POLLS for each word at least; its own look takes less."""
LINGER_US: Final = 1_000_000
WORDS_MAX: Final = SLEEP_WORDS - 1
NO_CALL: Final = -4
"""Results of `sleep_at`."""


class Watch:
    """A task's wait at one word. `call`: runs a function in the task's loop, from any thread;
    `wake`: that function. `pass_on`: hands a wake on to another client, if the word wakes one.
    `orphaned`: is called instead, by any thread, if the loop was closed while the task waited."""

    __slots__ = ("address", "call", "dropped", "endpoint", "expected", "fired", "idle", "orphaned",
                 "pass_on", "remote", "wake")  # fmt: skip

    def __init__(
        self,
        endpoint: Any,
        address: int,
        expected: int,
        call: Callable[..., object],
        wake: Callable[[], object],
        pass_on: Callable[[], object] | None = None,
        remote: bool = False,
        orphaned: Callable[[], object] | None = None,
    ) -> None:
        """`remote`: clients of other hosts change the word, which wakes no thread here."""
        self.endpoint = endpoint
        self.address = address
        self.expected = expected & HALF
        self.call = call
        self.wake = wake
        self.pass_on = pass_on
        self.orphaned = orphaned
        self.remote = remote
        self.fired = self.idle = self.dropped = False

    def hand_on(self) -> None:
        """The task has ended, and a wake was for it."""
        self._try(self.pass_on)

    def orphan(self) -> None:
        """The loop is closed: its task will not run again."""
        self.hand_on()
        self._try(self.orphaned)

    @staticmethod
    def _try(call: Callable[[], object] | None) -> None:
        if call is not None:
            with contextlib.suppress(LimpetError):  # the pool is closed, the channel removed
                call()


class Watcher:
    """One thread and its watches."""

    def __init__(self) -> None:
        self.words: dict[tuple[int, int], list[Watch]] = {}
        """By word: the endpoint's `id` and the address."""
        self.changed: set[tuple[int, int]] = set()
        """Words with watches that were added or dropped since the thread's last look."""
        self.bell = array("Q", [0])
        self.bell_at = self.bell.buffer_info()[0]
        self.runs = False
        self.remote = False
        """A word may be changed by clients of other hosts."""
        self.polls = False
        self.next_tick = 0
        self.fired: list[Watch] = []
        """Watches that were taken away, and whose tasks are to be woken."""

    def ring(self) -> None:
        """Tell the thread to look at `changed`. With the lock."""
        self.bell[0] = self.bell[0] + 1 & HALF
        wake_at(self.bell_at)
        if not self.runs:
            threading.Thread(target=self._serve, name="limpet-watcher", daemon=True).start()
            # ORDER: last, and before the thread looks, which takes the lock: if no thread can be
            # had, the next watch tries again.
            self.runs = True

    def _serve(self) -> None:
        """The thread."""
        try:
            self._run()
        except BaseException:
            with _lock:
                self.runs = False
                left = [*self.fired, *itertools.chain.from_iterable(self.words.values())]
                self.fired = []
                self.words.clear()
                for watch in left:
                    watch.fired = True
            _deliver([watch for watch in left if not watch.dropped])
            raise

    def _run(self) -> None:
        places, values = array("Q", [0] * SLEEP_WORDS), array("Q", [0] * SLEEP_WORDS)
        order: list[tuple[int, int]] = []
        found, us = -1, 0
        while True:
            with _lock:
                now = time.monotonic_ns() // 1000
                ticks = now >= self.next_tick
                if found > 0:
                    self.changed.add(order[found - 1])
                elif found < 0:
                    self.changed.update(self.words)
                rung, count = self.bell[0], len(self.words)
                dropped = self._look(ticks)
                fired = self.fired
                if not self.words and us == LINGER_US and found == -1 and not fired:
                    self.runs = False
                    return
                if ticks:
                    self.next_tick = now + max(TICK_US, LOOK_US * count)
            # Before the next sleep is made ready: the loop's thread wakes up meanwhile.
            _deliver(fired)
            fired.clear()
            for watch in dropped:
                watch.hand_on()
            with _lock:
                order = self._arrange(places, values)
                # ORDER: as before the look: a watch that was added since ends the sleep at once.
                values[0] = rung
                us = max(self.next_tick - now, 1) if self.words else LINGER_US
                if self.remote or self.polls:
                    us = min(us, POLL_US)
                self.remote = self.remote and bool(self.words)
            if not self.polls:
                found = sleep_at(places, values, len(order) + 1, us)
                self.polls = found == NO_CALL
            if self.polls:
                time.sleep(max(min(us, POLL_US), LOOK_US // POLLS * len(order)) / 1e6)
                found = -1

    def _look(self, ticks: bool) -> list[Watch]:
        """Move the watches that fire to `fired`, and take away those that were dropped; the ones of
        them that would have fired. With the lock."""
        fired = self.fired
        gone: list[Watch] = []
        for key in list(self.words) if ticks else self.changed:
            watches = self.words.get(key)
            if watches is None:
                continue
            kept: list[Watch] = []
            try:
                word = watches[0].endpoint.load(watches[0].address) & HALF
            except LimpetError:
                word = -1  # the pool was closed, say: their tasks find out
            for watch in watches:
                if watch.expected != word:
                    (gone if watch.dropped else fired).append(watch)
                elif not watch.dropped:
                    kept.append(watch)
            if ticks and kept:
                kept[0].idle = True
                fired.append(kept.pop(0))
            if kept:
                self.words[key] = kept
            else:
                del self.words[key]
        for watch in fired:
            watch.fired = True
        self.changed.clear()
        return gone

    def _arrange(self, places: Any, values: Any) -> list[tuple[int, int]]:
        """Fill the arrays for `sleep_at` behind the bell; the order of words. With the lock."""
        places[0] = self.bell_at
        order: list[tuple[int, int]] = []
        for key, watches in self.words.items():
            watch = watches[0]
            try:
                places[len(order) + 1] = watch.endpoint.place_of(watch.address)
            except LimpetError:
                self.changed.add(key)
                self.next_tick = 0  # its pool was closed just now: look at once
                continue
            values[len(order) + 1] = watch.expected
            order.append(key)
        return order


_lock = threading.Lock()
_watchers: list[Watcher] = []


def _forget() -> None:
    """In a forked child."""
    global _lock, _watchers
    _lock, _watchers = threading.Lock(), []


os.register_at_fork(after_in_child=_forget)


def add(watch: Watch) -> None:
    """Fire the watch when its word has another value than is expected, or after a tick."""
    key = (id(watch.endpoint), watch.address)
    with _lock:
        room = None
        for watcher in _watchers:
            if key in watcher.words:
                room = watcher
                break
            if room is None and len(watcher.words) < WORDS_MAX:
                room = watcher
        if room is None:
            room = Watcher()
            _watchers.append(room)
        room.words.setdefault(key, []).append(watch)
        room.changed.add(key)
        room.remote = room.remote or watch.remote
        room.ring()


def drop(watch: Watch) -> None:
    """The task does not wait any more."""
    key = (id(watch.endpoint), watch.address)
    with _lock:
        watch.dropped = True
        if not watch.fired:
            for watcher in _watchers:
                if watch in watcher.words.get(key, ()):
                    watcher.changed.add(key)
                    watcher.ring()
    if watch.fired and not watch.idle:
        watch.hand_on()


def _deliver(fired: list[Watch]) -> None:
    """Wake the tasks of these watches, in one call for each loop."""
    if not fired:
        return
    loops: dict[Callable[..., object], list[Watch]] = {}
    for watch in fired:
        loops.setdefault(watch.call, []).append(watch)
    for call, watches in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            call(Delivery(watches))


class Delivery:
    """A call that wakes the tasks of these watches. A loop that is closed forgets its calls."""

    def __init__(self, watches: list[Watch]) -> None:
        self.watches = watches

    def __call__(self) -> None:
        watches, self.watches = self.watches, []
        for watch in watches:
            watch.wake()

    def __del__(self) -> None:
        for watch in self.watches:
            if not watch.dropped:
                watch.orphan()
