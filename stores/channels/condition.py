"""The condition: threads of any processes wait, without its lock, for a change.

Memory: a region of its own, and the part `lock` (lock.py), a recursive lock
    0     number   of notifies that went to threads without a place
    8     order    of the last thread that has lined up
    16    used     places that were ever taken
    64    waiting  where threads without a place sleep (waiting.py)
    128   places   PLACES times: a word, and the order of its thread
A place's word, on which its thread sleeps
    bits 0-1    state   FREE, WAITING, NOTIFIED
    bits 16-63  owner   client id

`wait` takes a place while it holds the lock, gives the lock back, and waits until its place is
NOTIFIED; `notify(n)`, which needs the lock, too, does that to the n threads that wait longest, and
wakes these alone. So a waiter misses no notify between the two. A thread that finds no place waits
for the number: each notify that is for more threads than have places adds to it, and wakes all of
these threads. After the wait a thread has the lock again, and frees its place; if its time was
over, but it was notified meanwhile, it says that it was notified.

Order. Who gets the lock next is what keeps threads from starving: a few that run could take turns
with each other, so that all others find their condition false whenever they look.
    - A thread that was notified and is in the lock's queue is not overtaken by threads that come
      to the lock while it has to be woken (the lock is one without `overtaking`).
    - A thread that waited in vain, so that it waits once more, comes to the lock a moment later
      than it could, each time another one: else it comes in step with the same others, always
      after those that make its condition false (with the first rule alone some stood for 4 s).

A kill leaves behind: a change without its notify, if the process died with the lock
(CRASH(notifying)). A thread that waits looks from time to time at the holder of the lock, and
returns if that process is dead; it has the lock then, and `inherited` says so. And a place of a
dead process: if it is WAITING, the next notify passes it over; if it is NOTIFIED, a thread that
waits takes that notify for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from limpet.shm.errors import AddressError, PoolClosed
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE, MOMENT, MOMENTS
from limpet.stores.channels.lock.lock import Lock
from limpet.stores.channels.lock.ticket_layout import HALF, HOLDER
from limpet.stores.channels.waiting import Waiting, deadline_after, still_us

Found = TypeVar("Found")

NUMBER: Final = 0
ORDER: Final = 8
USED: Final = 16
PLACES_AT: Final = 2 * LINE
PLACES: Final = 256
PLACE: Final = 16
EVERY: Final = 1 << 62
FREE: Final = 0
WAITING: Final = 1
NOTIFIED: Final = 2
STATE: Final = 3
OWNER_SHIFT: Final = 16
NOWHERE: Final = -1
SELDOM: Final = 16
"""All but the first threads look for notifies of the dead every so many sleeps only."""


class Condition(Channel):
    """A condition with its lock, as `threading.Condition`, among processes: `pool.condition`."""

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        super().__init__(manager, name, parent, size=PLACES_AT + PLACES * PLACE, kind="condition")
        remote = self.pool.parameters.multi_host
        self.waiting = Waiting(self.endpoint, self.address + LINE, remote)
        self.lock = Lock(manager, "lock", self, recursive=True, overtaking=False)
        self.vain = 0
        """Waits of the thread that has the lock, without a notify since it took it."""

    # ---- the lock -------------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; as `Lock.acquire`."""
        taken = self.lock.acquire(blocking, timeout)
        if taken:
            self.vain = 0
        return taken

    def release(self) -> None:
        """Give the lock back; as `Lock.release`."""
        self.lock.release()

    @property
    def inherited(self) -> bool:
        """For a thread that holds the lock: whether the last holder died with it."""
        return self.lock.inherited

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    # ---- waiting --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back, wait to be notified, at most `timeout` seconds, and take it again.

        False: the time was over. True: check the condition again, as the notify may have been for
        another thread, or the lock's holder has died. Raises RuntimeError without the lock.
        """
        deadline = deadline_after(timeout)
        place = [NOWHERE]
        vain = self.vain
        notified = False
        count = 0
        try:
            before = self._line_up(place)
            count = self.lock._release_save()
            notified = self._is_notified(place[0], before, deadline)
            if vain and notified:
                self.endpoint.pause(MOMENT + (3 * vain + self.client.ident) % MOMENTS)
        finally:
            try:
                if count:
                    self.lock._acquire_restore(count)
                    self.vain = vain + 1
            finally:
                if place[0] != NOWHERE:
                    notified = self._step_out(place[0]) or notified
        return notified

    def wait_for(self, predicate: Callable[[], Found], timeout: float | None = None) -> Found:
        """`wait` until `predicate()` is true, at most `timeout` seconds; its last result."""
        deadline = deadline_after(timeout)
        found = predicate()
        while not found:
            left = still_us(deadline)
            if not left:
                break
            self.wait(None if timeout is None else left / 1e6)
            found = predicate()
        return found

    def notify(self, n: int = 1) -> None:
        """Wake the `n` threads that wait longest. If more threads wait than there are places, it
        may wake more of these. Raises RuntimeError without the lock."""
        with self.operation():
            self._check_owned("notify")
            if n <= 0:
                return
            self.vain = 0
            waiting = sorted(
                (self.endpoint.load(at + 8), at, word)
                for at, word in self._places()
                if word & STATE == WAITING
            )
            for _, at, word in waiting:
                lives = self.lives(word >> OWNER_SHIFT)
                # LINEARIZES: this thread is notified.
                # CRASH(notifying): some are not; threads that wait see that the lock's holder died.
                self.endpoint.cas(at, word, word - WAITING + NOTIFIED if lives else FREE)
                if lives:
                    self.endpoint.futex_wake(at, 1)
                    n -= 1
                    if not n:
                        return
            self.endpoint.faa(self.address + NUMBER, 1)
            self.waiting.wake()

    def notify_all(self) -> None:
        """Wake all threads that wait. Raises RuntimeError without the lock."""
        self.notify(EVERY)

    def _check_owned(self, what: str) -> None:
        """In an operation: before its first one, a forked child seems to be its parent."""
        if not self.lock._is_owned():
            raise RuntimeError(f"cannot {what} on {self!r} without its lock")

    def _places(self) -> list[tuple[int, int]]:
        """The places that were ever taken: address and word. In an operation."""
        first = self.address + PLACES_AT
        used = min(self.endpoint.load(self.address + USED), PLACES)
        return [(at, self.endpoint.load(at)) for at in range(first, first + used * PLACE, PLACE)]

    def _line_up(self, place: list[int]) -> int:
        """Take a place, whose address is put into `place`, if one is free; the number."""
        with self.operation():
            self._check_owned("wait")
            endpoint = self.endpoint
            at = self.address + PLACES_AT
            end = at + PLACES * PLACE
            while at < end and endpoint.load(at) & STATE != FREE:
                at += PLACE
            if at < end:
                used = (at - self.address - PLACES_AT) // PLACE + 1
                if endpoint.load(self.address + USED) < used:
                    endpoint.store(self.address + USED, used)
                order = endpoint.load(self.address + ORDER) + 1
                endpoint.store(self.address + ORDER, order)
                endpoint.store(at + 8, order)
                place[0] = at
                # ORDER: last, after what belongs to it.
                endpoint.cas(at, FREE, self.client.ident << OWNER_SHIFT | WAITING)
            return int(endpoint.load(self.address + NUMBER))

    def _step_out(self, at: int) -> bool:
        """Free our place; whether it was notified."""
        with self.operation():
            word = self.endpoint.load(at)
            if word >> OWNER_SHIFT != self.client.ident:
                return False
            while self.endpoint.cas(at, word, FREE) != word:
                word = self.endpoint.load(at)
            return word & STATE == NOTIFIED

    def _is_notified(self, place: int, before: int, deadline: float | None) -> bool:
        """Wait until our place is notified, or, without one, the number is not `before`; or until
        the lock's holder is dead, or one that was notified; False: timeout."""
        looks = token = idle = 0
        sleepy = False
        while True:
            with self.operation():
                if place == NOWHERE:
                    if sleepy:
                        token = self.waiting.prepare()
                    if self.endpoint.load(self.address + NUMBER) != before:
                        return True
                else:
                    token = self.endpoint.load(place)
                    if token & STATE != WAITING or token >> OWNER_SHIFT != self.client.ident:
                        return True
                if sleepy and (self._is_forsaken() or self._inherits(place, idle)):
                    return True
            left = still_us(deadline)
            if not left:
                return False
            if not sleepy:
                looks += 1
                sleepy = not self.waiting.spin(looks)
            elif place == NOWHERE:
                self.waiting.sleep(token, left)
            else:
                self._sleep(place, token, left)
            idle += sleepy

    def _sleep(self, at: int, word: int, left_us: int) -> None:
        """Sleep on our place until it is notified, or a moment. Outside of operations."""
        try:
            self.endpoint.futex_wait(at, word & HALF, min(left_us, self.waiting.sleep_us))
        except AddressError as error:
            raise PoolClosed("the pool was closed while this thread waited") from error

    def _inherits(self, place: int, idle: int) -> bool:
        """Whether a process has died that was notified, and its notify is ours now. In an
        operation."""
        number = (place - self.address - PLACES_AT) // PLACE
        if number >= SELDOM and (idle + number) % SELDOM:
            return False
        return any(
            word & STATE == NOTIFIED
            and not self.lives(word >> OWNER_SHIFT)
            and self.endpoint.cas(at, word, FREE) == word
            for at, word in self._places()
        )

    def _is_forsaken(self) -> bool:
        """Whether a dead process has the lock. In an operation."""
        holder = self.endpoint.load(self.lock.address) & HOLDER
        return holder != 0 and not self.lives(holder)
