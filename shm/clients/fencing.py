"""Clients that stand still: how that is judged, how they are killed, and leases between hosts.

Killing (`kill`): the process of a client of this host, and no other process. A client kills only a
process that has the pool's control segment mapped. The words of a slot do not suffice: otherwise a
process that may write to the pool could cause a kill of any process of this user. If /proc does not
show the mappings of a process (there is no /proc, or the process hides from us), the process is not
killed, and the log names the client instead, as with `fence="wait"`.

From the judgement to the kill, milliseconds may pass on a busy machine, in which the process may go
on. So the last step before the signal is to look at the client's pin and progress again: if it got
on, it is not killed. The event of a kill tells how long before its end that look was.

The evidence (`Sightings`): how long a client has been seen to hold something. It stands still in
one hold of one resource. So a sighting belongs to a resource (a lock, a lease, a client in an
operation) together with a *hold*: a value that no other hold of this resource has. The sighting
begins anew

    - when the hold differs: the holder has changed, or has made progress
    - when this client has not looked for `gap_s`: that wait is over, and a new one begins. So a
      hold that is known by counters which wrap, or that its holder may have had twice, is judged
      within one wait only

A client that is stopped in two unrelated holds, or that by chance has a lock at each look, is never
taken for one that stands still (trap G9).

Leases (`Heart`), in a pool of several hosts (`multi_host`). A thread sets the client's beat to the
wall clock four times a lease (hosts.py), and takes back a request of another host to end this
client (the fence word): it goes on. But a client that was asked to end, and has stood still in one
operation for a lease, by its pin and its progress word, does not renew its lease: others wait for
the memory that it keeps. In the compiled build this thread needs no interpreter (`Renewal`), so a
call that keeps the GIL for long does not end the lease. In the pure build it does. Either thread
stops with its process: no other process may renew, as it would renew for a client that is stopped.

A second thread kills clients of its own host when a client of another host asks for that, because
no signal crosses hosts: but none whose beat goes on, and none in a pool with `fence="wait"`.

That thread refers to its client only while it looks, so a handle that the program has dropped is
collected, and the thread ends. `stop` is one call of a lock: a signal handler that raises cannot
cut it in two, and it does not wait for this thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from limpet.shm import uninterrupted as threads
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.fabric import Renewal
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.errors import AddressError, ClientError, NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.shm.clients.client import Client
    from limpet.shm.clients.liveness import LifeLocks, Watcher
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.parameters import PoolParameters


SIGHTINGS_MAX: Final = 4096
"""Resources that are remembered; those with the oldest last look are forgotten first."""


class Sighting(NamedTuple):
    """A hold, and the times of its first and its last look, in seconds."""

    hold: object
    since_s: float
    seen_s: float


class Sightings:
    """The sightings of one client. Times are in seconds, of any clock that does not go back."""

    def __init__(self) -> None:
        self._known: dict[object, Sighting] = {}

    def lasted(
        self, resource: object, hold: object, now_s: float, gap_s: float = math.inf
    ) -> float:
        """Note that `resource` is in this hold; the seconds for which it has been seen in it."""
        known = self._known.get(resource)
        since = now_s
        if known is not None and known.hold == hold and now_s - known.seen_s <= gap_s:
            since = known.since_s
        elif known is None and len(self._known) >= SIGHTINGS_MAX:
            self._forget_half()
        self._known[resource] = Sighting(hold, since, now_s)
        return now_s - since

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()

    def _forget_half(self) -> None:
        by_age = sorted(self._known, key=lambda resource: self._known[resource].seen_s)
        for resource in by_age[: len(by_age) // 2]:
            del self._known[resource]


log = logging.getLogger("limpet")


class Members(Protocol):
    """The clients of a pool (membership.py), as this module sees them."""

    endpoint: Endpoint
    client: Client
    pool: str
    lease_s: float
    parameters: PoolParameters
    locks: LifeLocks | None
    watcher: Watcher

    def occupied(self) -> Iterator[tuple[int, int]]: ...
    def is_local(self, slot: int) -> bool: ...
    def dead(self, slot: int, word: int) -> bool: ...
    def activity(self, slot: int) -> tuple[int, int]: ...
    def suspend(self, slot: int, word: int, what: str) -> None: ...
    @staticmethod
    def pid(word: int) -> int: ...


def kill(
    membership: Members, slot: int, word: int, what: str, seen: tuple[int, int] | None = None
) -> int:
    """Kill the client of a slot, and wait until it is dead; how long that took from the last look
    at the client, in ns. 0: it is not possible, or the client got on: its pin and its progress word
    are others than these that were `seen`."""
    endpoint, pid = membership.endpoint, membership.pid(word)
    locks = membership.locks if membership.watcher.locks_tell else None
    at = slot_address(slot)
    looked_ns = 0

    def sure() -> bool:
        nonlocal looked_ns
        # ORDER: called when the pid cannot become another process's any more. If the state word and
        # the lock then show that the client lives, that process is the client.
        if endpoint.load(at) != word or membership.dead(slot, word):
            return False
        if locks is not None and not locks.mapped_by(pid):
            return False
        # ORDER: last, as what comes before may take long.
        looked_ns = time.monotonic_ns()
        return seen is None or membership.activity(slot) == seen

    try:
        if not membership.watcher.kill(pid, endpoint.load(at + slots.STARTED), sure=sure):
            return 0
    except PermissionError:  # another user's
        return 0
    if not looked_ns:
        return 1  # it has died by itself
    took_ns = time.monotonic_ns() - looked_ns
    log.warning(
        "%s: killed process %d: it stood still for %.3f s and others wait for %s",
        membership.pool, pid, membership.lease_s, what,
    )  # fmt: skip
    return max(1, took_ns)


class Heart:
    """The lease of one client while it has a slot."""

    def __init__(self) -> None:
        self._running: threading.Lock | None = None
        self._thread: threading.Thread | None = None
        self._renewal: Any = None

    def start(self, membership: Members) -> None:
        """Renew the lease from now on, until `stop`, or until the client has another slot."""
        running = threading.Lock()
        running.acquire()
        self._running = running
        if threads.ending:
            return  # for an operation of an exit handler, the lease is long enough as it is
        slot, word = membership.client.slot, membership.client.word
        if Renewal is not None:
            self._renewal = Renewal(
                membership.endpoint, slot, word, int(membership.lease_s * 1e6),
                slots.BEAT, slots.FENCE, slots.PIN, slots.PROGRESS,
            )  # fmt: skip
        target = (weakref.ref(membership), running, slot, word)
        self._thread = threading.Thread(target=_beat, args=target, name="limpet-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the threads, if there are any. May be called twice."""
        if self._running is not None:
            with contextlib.suppress(RuntimeError):  # it was stopped before
                self._running.release()
        if self._renewal is not None:
            self._renewal.stop()

    def join(self) -> None:
        """Wait until the thread, which was stopped, has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _beat(client: weakref.ref[Members], running: threading.Lock, slot: int, word: int) -> None:
    sightings = Sightings()
    while True:
        membership = client()
        if membership is None:
            return
        lease_s = membership.lease_s
        try:
            if membership.endpoint.load(slot) != word:
                return
            if Renewal is None:
                renew(membership, sightings, slot)
            _end_who_must(membership, sightings)
        except ClientError:
            return  # the client was declared dead meanwhile; its next operation raises that
        except (NodeFailed, AddressError, ValueError):
            # ValueError: the portable fabric has unmapped the node during a verb
            if running.locked():
                log.exception("%s: the control segment is lost; the lease ends", membership.pool)
            return
        del membership
        if running.acquire(timeout=lease_s / 4):
            return


def renew(membership: Members, sightings: Sightings, slot: int) -> None:
    """Renew our lease, unless we were asked to end and stand still in one operation; as
    limpet_lease_renew (native.h)."""
    endpoint = membership.endpoint
    pin, progress = endpoint.load(slot + slots.PIN), endpoint.load(slot + slots.PROGRESS)
    now = time.monotonic()
    stood_s = sightings.lasted("our pin", (pin, progress), now) if pin else 0.0
    asked = endpoint.load(slot + slots.FENCE)
    if asked and stood_s >= membership.lease_s:
        return
    before = endpoint.load(slot + slots.BEAT)
    endpoint.store(slot + slots.BEAT, max(before + 1, endpoint.microseconds()))
    if asked:
        endpoint.cas(slot + slots.FENCE, asked, 0)


def _end_who_must(membership: Members, sightings: Sightings) -> None:
    """Kill the clients of this host that another host wants ended, and whose beat stands still."""
    endpoint = membership.endpoint
    for slot, word in membership.occupied():
        at = slot_address(slot)
        asked = endpoint.load(at + slots.FENCE)
        if not asked or not membership.is_local(slot):
            continue
        hold = (word, asked, endpoint.load(at + slots.BEAT))
        # Half a lease: a client that goes on renews its lease twice in it.
        if sightings.lasted(slot, hold, time.monotonic()) < membership.lease_s / 2:
            continue
        what = "what it keeps from another host"
        if membership.parameters.fence == "wait":
            membership.suspend(slot, word, what)
        else:
            kill(membership, slot, word, what)
