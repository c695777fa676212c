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
over, but it was notified meanwhile, it says that it was notified. Tasks of event loops wait without
places (task_waits.py).

Order. The order in which threads get the lock keeps them from starving: a few threads that run
could take turns with each other, so that all others find their condition false whenever they look.
    - A thread that was notified and is in the lock's queue is not overtaken by threads that come
      to the lock while it has to be woken (the lock is one without `overtaking`).
    - A thread that waited in vain, so that it waits once more, comes to the lock a moment later
      than it could, each time another one: else it comes in step with the same others, always
      after those that make its condition false (with the first rule alone some stood for 4 s).

A kill leaves behind: a change without its notify, if the process died with the lock
(CRASH(notifying)). A thread that waits looks from time to time at the holder of the lock, and
returns if that process is dead. The thread that has the lock next, whose `inherited` says so,
notifies all. A kill may also leave a place of a dead process: if the place is WAITING, the next
notify passes it over; if it is NOTIFIED, a thread that waits takes it, and returns. So a thread may
have two places that are NOTIFIED when it has the lock again: then it notifies another thread.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any, Final, TypeVar

from limpet.shm.errors import AddressError, PoolClosed
from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE, MOMENT, MOMENTS
from limpet.stores.channels.lock.lock import Lock
from limpet.stores.channels.lock.ticket_layout import HALF, HOLDER
from limpet.stores.channels.phases import cas_alone
from limpet.stores.channels.waiting import Wait, Waiting, deadline_after, still_us

Found = TypeVar("Found")

NUMBER: Final = 0
ORDER: Final = 8
USED: Final = 16
PLACES_AT: Final = 2 * LINE
PLACES: Final = 256
FEW: Final = 16
"""Places that are read together with the first words."""
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

    def acquire(self, blocking: bool = True, timeout: Seconds = -1) -> bool:
        """Take the lock; as `Lock.acquire`."""
        taken = self.lock.acquire(blocking, timeout)
        if taken:
            self.taken()
        return taken

    def taken(self) -> None:
        """This thread, or task, has just taken the lock."""
        told = False
        try:
            self.vain = 0
            self._notify_for_dead()
            told = True
        finally:
            if not told:
                self.lock.release()

    def _notify_for_dead(self) -> None:
        """Notify all, if the lock's last holder has died: its change may be without a notify."""
        if self.lock.inherited:
            self.notify_all()

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

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Give the lock back, wait to be notified, at most `timeout` seconds, and take it again.

        False: the time was over. True: check the condition again, as the notify may have been for
        another thread, or the lock's holder has died. Raises RuntimeError without the lock.
        """
        deadline = deadline_after(timeout)
        places: list[int] = []
        vain = self.vain
        notified = returns = False
        count = 0
        try:
            before = self._line_up(places)
            count = self.lock._release_save()
            notified = self._is_notified(places, before, deadline)
            if vain and notified:
                self.endpoint.pause(MOMENT + self.moment(vain))
            returns = True
        finally:
            taken = False
            try:
                if count:
                    self.lock._acquire_restore(count)
                    taken = True
            finally:
                found = self.step_out(places, vain, taken, returns)
        return notified or found

    def wait_for(self, predicate: Callable[[], Found], timeout: Seconds | None = None) -> Found:
        """`wait` until `predicate()` is true, at most `timeout` seconds; its last result."""
        end = time.monotonic() + (0.0 if timeout is None else seconds_of("timeout", timeout))
        found = predicate()
        while not found:
            left = None if timeout is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
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
                (order, at, word) for at, word, order in self._read()[1] if word & STATE == WAITING
            )
            notified: list[int] = []
            for _, at, word in waiting:
                if len(notified) == n:
                    break
                lives = self.lives(word >> OWNER_SHIFT)
                # LINEARIZES: this thread is notified.
                # CRASH(notifying): some are not; threads that wait see that the lock's holder died.
                self.endpoint.post_cas(at, word, word - WAITING + NOTIFIED if lives else FREE)
                if lives:
                    notified.append(at)
            looked = 0
            if len(notified) < n:
                self.endpoint.post_faa(self.address + NUMBER, 1)
                # ORDER: after the number, which is on the same node.
                looked = self.waiting.post_look()
            self.endpoint.wait()
            for at in notified:
                self.endpoint.futex_wake(at, 1)
            if len(notified) < n:
                self.waiting.wake_if(self.endpoint.result(looked))

    def notify_all(self) -> None:
        """Wake all threads that wait. Raises RuntimeError without the lock."""
        self.notify(EVERY)

    # ---- for tasks (task_waits.py), which wait without a place ----------------------------------

    def begin_wait(self) -> tuple[int, int]:
        """The number, and the waits in vain. Raises RuntimeError without the lock."""
        with self.operation():
            self._check_owned("wait")
            return self._look(self.address + NUMBER), self.vain

    def moment(self, vain: int) -> int:
        """How long to wait before the lock, after so many waits in vain: 0 to MOMENTS - 1."""
        return int(3 * vain + self.client.ident) % MOMENTS

    def is_over(self, before: int, places: list[int]) -> bool:
        """Whether a wait that began at this number is over. `places`: as for `step_out`."""
        with self.operation():
            return (
                self._look(self.address + NUMBER) != before
                or self._is_forsaken()
                or self._inherits(places, 0)
            )

    def _check_owned(self, what: str) -> None:
        """In an operation: before its first one, a forked child seems to be its parent."""
        if not self.lock._is_owned():
            raise RuntimeError(f"cannot {what} on {self.title()} without its lock")

    def _look(self, at: int) -> int:
        """A word. In an operation; 1 round trip."""
        ticket = self.endpoint.post_load(at)
        self.endpoint.wait()
        return int(self.endpoint.result(ticket))

    def _read(self) -> tuple[array[int], list[tuple[int, int, int]]]:
        """The first words, and address, word and order of each place that was ever taken. In an
        operation; 1 round trip, or 2 if there are many."""
        first = self.address + PLACES_AT
        words = array("Q", bytes(PLACES_AT + FEW * PLACE))
        self.endpoint.post_read(self.address, words, len(words))
        self.endpoint.wait()
        used = min(words[USED >> 3], PLACES)
        found = words[PLACES_AT >> 3 :]
        if used > FEW:
            more = array("Q", bytes((used - FEW) * PLACE))
            self.endpoint.post_read(first + FEW * PLACE, more, len(more))
            self.endpoint.wait()
            found += more
        return words, [
            (first + number * PLACE, found[2 * number], found[2 * number + 1])
            for number in range(used)
        ]

    def _line_up(self, places: list[int]) -> int:
        """Take a place, whose address is added to `places`, if one is free; the number."""
        with self.operation():
            self._check_owned("wait")
            words, taken = self._read()
            at = next((at for at, word, _ in taken if word & STATE == FREE), NOWHERE)
            if at == NOWHERE and len(taken) < PLACES:
                at = self.address + PLACES_AT + len(taken) * PLACE
                words[USED >> 3] += 1
            if at != NOWHERE:
                words[ORDER >> 3] += 1
                self.endpoint.post_write(self.address + ORDER, words[ORDER >> 3 :], 2)
                self.endpoint.post_write(at + 8, words[ORDER >> 3 :], 1)
                places.append(at)
                # ORDER: last, after what belongs to it, which is on the same node.
                self.endpoint.post_cas(at, FREE, self.client.ident << OWNER_SHIFT | WAITING)
                self.endpoint.wait()
            return words[NUMBER >> 3]

    def step_out(self, places: list[int], vain: int, taken: bool, returns: bool) -> bool:
        """Free our places after a wait; whether one was notified.

        `taken`: we have the lock again. Then a notify that was not for this wait, or for one that
        does not return (a signal handler raises), goes to another thread.
        """
        if taken:
            self._notify_for_dead()
        notified = 0
        if places:
            with self.operation():
                notified = sum(map(self._free, places))
        if taken:
            if notified > returns:
                self.notify(notified - returns)
            self.vain = vain + 1
        return notified > 0

    def _free(self, at: int) -> bool:
        """Free a place, if it is ours; whether it was notified. In an operation."""
        word = self._look(at)
        while word >> OWNER_SHIFT == self.client.ident:
            seen = cas_alone(self.endpoint, at, word, FREE)
            if seen == word:
                return word & STATE == NOTIFIED
            word = seen
        return False

    def _is_notified(self, places: list[int], before: int, deadline: float | None) -> bool:
        """Wait until our place is notified, or, without one, the number is not `before`; or until
        the lock's holder is dead, or one that was notified; False: timeout."""
        place = places[0] if places else NOWHERE
        wait = Wait(self.waiting, deadline)
        idle = 0
        while True:
            with self.operation():
                if place == NOWHERE:
                    wait.note()
                    if self._look(self.address + NUMBER) != before:
                        return True
                else:
                    word = self._look(place)
                    if word & STATE != WAITING or word >> OWNER_SHIFT != self.client.ident:
                        return True
                if wait.sleepy and (self._is_forsaken() or self._inherits(places, idle)):
                    return True
            idle += wait.sleepy
            if place == NOWHERE or not wait.sleepy:
                if not wait.pause():
                    return False
            else:
                left = still_us(deadline)
                if not left:
                    return False
                self._sleep(place, word, left)

    def _sleep(self, at: int, word: int, left_us: int) -> None:
        """Sleep on our place until it is notified, or a moment. Outside of operations."""
        try:
            self.endpoint.futex_wait(at, word & HALF, min(left_us, self.waiting.sleep_us))
        except AddressError as error:
            raise PoolClosed("the pool was closed while this thread waited") from error

    def _inherits(self, places: list[int], idle: int) -> bool:
        """Whether a process has died that was notified, and its place, which is added to `places`,
        is ours now. In an operation."""
        number = (places[0] - self.address - PLACES_AT) // PLACE if places else 0
        if number >= SELDOM and (idle + number) % SELDOM:
            return False
        for at, word, _ in self._read()[1]:
            if word & STATE == NOTIFIED and not self.lives(word >> OWNER_SHIFT):
                # One CAS: if we are killed, it is a dead process's again.
                ours = self.client.ident << OWNER_SHIFT | NOTIFIED
                if self.endpoint.cas(at, word, ours) == word:
                    places.append(at)
                    return True
        return False

    def _is_forsaken(self) -> bool:
        """Whether a dead process has the lock. In an operation."""
        holder = self.endpoint.load(self.lock.address) & HOLDER
        return holder != 0 and not self.lives(holder)
