"""Clients: joining, leaving, noticing death, fencing suspects, the log of events.

joining.py has the way in which a client takes its slot, and the steps of the slot's state word.

Death. A client of this host is dead when the kernel has dropped its life lock (liveness.py) and
no process of its pid and start time has the pool mapped (liveness.py). That is certain and
immediate. If the slot's lock is on no file that we see, the process alone decides. For another PID
namespace (a container) only the lock can be asked. In a pool with `multi_host`, a client of another
host is lost by its lease (hosts.py); so is a client of another PID namespace whose lock we cannot
see. A client whose lock is held lives; in another PID namespace it is given up by its lease all the
same, since its container may be frozen, and the guard keeps it from the pool when it goes on
(`Endpoint.guard`); but not with `fence="wait"`. In a pool without `multi_host`, another boot id
means that the host was restarted; and while a client of another PID namespace lives, a newcomer of
this one is refused, because neither could fence the other.

`fence`: a client that lives, but stands still for a lease while other clients wait for it, gets
SIGKILL, and the waiting client waits for its death, since its next plain write could land anywhere.
With `fence="wait"` the log names it instead. fencing.py decides which process may be killed.
"Standing still" refers to one hold of one resource (fencing.py): all the time the client is seen
in the same operation, by the count in its pin, or in none, and its progress word does not change.
A client that takes a resource for which others wait, outside of an operation or for several of
them, advances that word first.
"""

from __future__ import annotations

import logging
import math
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients import events, fencing, hosts, joining
from limpet.shm.clients.events import FENCED, NODE_FAILED, RECOVERED, SUSPENDED
from limpet.shm.clients.fencing import Heart, Sightings
from limpet.shm.clients.liveness import (
    Host,
    Watcher,
    exists,
    forget_surroundings,
    process_name,
    this_host,
)
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    GATE,
    NODE_STATES,
    SLOT_SIZE,
    SLOTS_USED,
    slot_address,
)
from limpet.shm.endpoint.slots import DYING, FREE, JOINING, LIVE, client_id
from limpet.shm.endpoint.states import FAILED, IN_SERVICE, node_word
from limpet.shm.errors import ClientError, PoolCorrupt
from limpet.shm.release import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.shm.clients.client import Client
    from limpet.shm.clients.epoch import Pinned
    from limpet.shm.clients.liveness import LifeLocks
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.parameters import PoolParameters

log = logging.getLogger("limpet")

SWEEP_INTERVAL_S: Final = 0.01
SWEEP_SHARE: Final = 20
"""`sweep_sometimes` waits this many times as long as the last sweep took."""
WAIT_GAP_S: Final = 1.0
"""Looks that are further apart than this, and than a lease, are of different waits."""


def journal_of(endpoint: Endpoint, slot: int) -> list[tuple[int, int]]:
    """The pairs of the client journal in a client slot, reference and link_address, without free
    ones."""
    return journal_then(endpoint, slot)[0]


def journal_then(endpoint: Endpoint, slot: int) -> tuple[list[tuple[int, int]], int]:
    """`journal_of`, and the state word of the slot as it was after that."""
    at = slot_address(slot)
    first = at + slots.CLIENT_JOURNAL
    journal = range(first, first + slots.CLIENT_JOURNAL_PAIRS.size, 8)
    *words, word = endpoint.load_all((*journal, at))
    return [pair for pair in zip(words[::2], words[1::2], strict=True) if pair[0]], word


_handles: weakref.WeakSet[Membership] = weakref.WeakSet()
"""Those of this process."""


class Membership:
    """The clients of one pool, seen from one of them."""

    def __init__(
        self, endpoint: Endpoint, client: Client, parameters: PoolParameters, pool: str
    ) -> None:
        self.endpoint = endpoint
        self.client = client
        self.parameters = parameters
        self.pool = pool
        self.lease_s = parameters.lease_us / 1e6
        self.restore: Callable[[int, int], dict[str, int]]
        """Recovers the client of a slot and state word; set by the pool."""
        self.release: Callable[[], None]
        """Gives back all that this client has, and its slot; set by the pool."""
        self.locks: LifeLocks | None = None
        """The life locks of the pool's clients; set by the pool."""
        self.watcher = Watcher()
        """Knows which processes of this host live, and kills suspects."""
        self.now: Callable[[], float] = time.monotonic
        """The clock by which leases are measured, in seconds."""
        self._sightings = Sightings()
        self._named: set[int] = set()
        """State words of the clients that were named as standing still."""
        self._swept = 0.0
        self._sweep_s = 0.0
        self._gate = 0
        """The number under which this process has the gate of a durable pool."""
        self.make_heart: Callable[[], Heart] = Heart
        """Makes what keeps our lease; set by the pool for a client that does not map it."""
        self.heart = self.make_heart()
        self.host_name = hosts.given_name() if parameters.multi_host else ""
        """The name of this host; empty in a pool of one host."""
        self.remote = hosts.Remote(self)
        """Knows when clients of other hosts are lost."""
        _handles.add(self)

    @property
    def here(self) -> Host:
        """The host of this client."""
        return this_host(self.host_name)

    @property
    def ident(self) -> int:
        """This client's id."""
        return int(self.client.ident)

    # ---- joining and leaving ----------------------------------------------------------------

    def join(self) -> None:
        """Take a slot. Raises ClientError when every slot is a living client's."""
        joining.join(self)

    def depart(self) -> None:
        """Give up this client's slot and everything it has. Harmless when it has none."""
        self.heart.stop()
        slot = self.client.slot
        if self.client.ident and self.endpoint.load(slot) == self.client.word:
            try:
                self.release()
            finally:
                self.guard_gate(self._gate)
                # ORDER: the slot is FREE or DYING before it is unlocked. If it is neither, as the
                # control segment is lost, no client can take it.
                if self.locks is not None:
                    self.locks.drop((slot - CLIENT_SLOTS) // SLOT_SIZE)

    def resigned(self, slot: int) -> None:
        """This client has given up its slot, at that address, in an operation: DYING it is."""
        self.heart.stop()
        if self.locks is not None:
            self.locks.drop((slot - CLIENT_SLOTS) // SLOT_SIZE)

    def guard_gate(self, number: int) -> None:
        """Without a slot, make no step while the gate has another number; 0: end that."""
        self._gate = number
        if not self.ident:
            self.endpoint.guard(GATE if number else 0, number)

    def forget(self) -> None:
        """Forget when the other clients were looked at, and since when they have stood still."""
        self._sightings.clear()
        self._named.clear()
        self._swept = self._sweep_s = 0.0

    def forked(self) -> None:
        """In a forked child: forget everything that was the parent's."""
        forget_surroundings()
        self.forget()
        self.heart = self.make_heart()
        if self.locks is not None:
            self.locks.open()

    def close(self) -> None:
        """The last step of leaving: nothing of the pool's memory may be in use any more.

        A slot that was not given up belongs to a dead client from now on; other clients recover it.
        """
        self.heart.stop()
        if self.locks is not None:
            self.locks.close()

    # ---- looking at the others ----------------------------------------------------------------

    def occupied(self) -> Iterator[tuple[int, int]]:
        """Slot number and state word of every slot that is not free."""
        used = range(self.endpoint.load(SLOTS_USED))
        for slot, word in enumerate(self.endpoint.load_all(map(slot_address, used))):
            if word >> 60 > DYING:
                raise PoolCorrupt(
                    f"{self.pool}: client slot {slot} is damaged: {word:#x}; destroy the pool"
                )
            if word >> 60 != FREE:
                yield slot, word

    @staticmethod
    def pid(word: int) -> int:
        return word >> slots.INCARNATION_BITS & 0xFFFFFF

    def process(self, slot: int, word: int) -> str:
        """The process of a client, in words: its pid, and where that is its pid."""
        pid, host = self.pid(word), self.host_of(slot)
        if host == self.here:
            return f"{pid} ({name})" if (name := process_name(pid)) else str(pid)
        if host.boot == self.here.boot:
            return f"{pid} of another container (PID namespace {host.namespace:016x})"
        name = text_of(self.endpoint.load(slot_address(slot) + slots.NAME))
        return f"{pid} of host {name or '?'} (PID namespace {host.namespace:016x})"

    def host_of(self, slot: int) -> Host:
        """Host and PID namespace of the client of a slot."""
        at = slot_address(slot)
        return Host(*self.endpoint.load_all((at + slots.BOOT, at + slots.NAMESPACE)))

    def ours(self, slot: int) -> bool:
        """Whether the slot is this client's. (Two of one process may have the same state word.)"""
        return slot_address(slot) == self.client.slot

    def is_local(self, slot: int) -> bool:
        """Whether the client of the slot is a process of this host and PID namespace."""
        return self.host_of(slot) == self.here

    def is_provable(self, slot: int) -> bool:
        """Whether this host's kernel shows, without a lease, if the client of the slot lives."""
        host, here = self.host_of(slot), self.here
        return host == here or (host.boot == here.boot and self._is_locked_here(slot))

    def keeps_others_out(self, slot: int) -> bool:
        """Whether the client of the slot keeps memory from others: it is in an operation, or looks
        at an object."""
        at = slot_address(slot)
        records = range(at + slots.RECORDS, at + slots.RECORDS + 8 * slots.RECORDS_COUNT, 8)
        return any(self.endpoint.load_all((at + slots.PIN, *records)))

    def dead(self, slot: int, word: int, waiting: bool = False) -> bool:
        """Whether the client of that slot and state word is certainly dead, or has left. `waiting`:
        it keeps us from something, so its container or host may be asked to end it."""
        if word >> 60 == DYING:
            return True
        if self.ours(slot) and word == self.client.word:
            return False  # a query by the lock's owner shows no lock
        if word >> 60 == JOINING:
            return self._dead_joining(slot, word)
        at = slot_address(slot)
        host, here = self.host_of(slot), self.here
        multi_host = self.parameters.multi_host
        if host.boot != here.boot:
            return not multi_host or self.remote.lost(slot, word, waiting)
        if self._is_locked_here(slot):
            assert self.locks is not None
            held = self.locks.held(slot)
            if held and multi_host and host != here and self.parameters.fence != "wait":
                # It lives. Its container may stand still: then the guard keeps it from the pool.
                return self.remote.lost(slot, word, waiting)
            if held or host != here:
                return not held
        if host == here:
            return not self._uses(self.pid(word), self.endpoint.load(at + slots.STARTED))
        return multi_host and self.remote.lost(slot, word, waiting)

    def _uses(self, pid: int, started: int) -> bool:
        """Whether the process of this PID namespace lives and, as far as /proc tells, has the pool
        mapped."""
        if not self.watcher.alive(pid, started):
            return False
        locks = self.locks if self.watcher.locks_tell else None
        return locks is None or locks.mapped_by(pid) is not False

    def _dead_joining(self, slot: int, word: int) -> bool:
        """As `dead`, for a client that has not written its host yet.

        If it is of this host, no lock and no such pid are proof. Otherwise it counts as dead if it
        stands still for a lease in these few steps, which take microseconds, and is not seen to
        live.
        """
        if self.locks is not None and self.locks.file and self.watcher.locks_tell:
            if self.locks.held(slot):
                return False
        elif exists(self.pid(word)):
            return False
        if not self.parameters.multi_host and not exists(self.pid(word)):
            return True
        return self.overdue(("joining", slot), word)

    def _is_locked_here(self, slot: int) -> bool:
        """Whether the life lock of the slot's client is on a file that we see."""
        locks = self.locks
        return (
            locks is not None
            and self.watcher.locks_tell
            and locks.file != 0
            and self.endpoint.load(slot_address(slot) + slots.LOCKED) == locks.file
        )

    def overdue(self, resource: object, hold: object, steadily: bool = False) -> bool:
        """Whether `resource` has been seen in this hold for a whole lease.

        `hold`: a value that no other hold of it has. `steadily`: a later hold may have the same
        value, so only the looks of one wait count (fencing.py).
        """
        gap_s = max(self.lease_s, WAIT_GAP_S) if steadily else math.inf
        return self._sightings.lasted(resource, hold, self.now(), gap_s) >= self.lease_s

    def sweep(self) -> list[int]:
        """Recover every client that is dead; their ids."""
        began = self.now()
        found = []
        for slot, word in list(self.occupied()):
            if not self.ours(slot) and self.dead(slot, word):
                self.recover(slot, word)
                found.append(client_id(slot, word))
        self._swept = self.now()
        self._sweep_s = self._swept - began
        return found

    def sweep_sometimes(self) -> None:
        """`sweep`, unless that was done a moment ago."""
        if self.now() - self._swept >= max(SWEEP_INTERVAL_S, SWEEP_SHARE * self._sweep_s):
            self.sweep()

    def recover(self, slot: int, word: int) -> dict[str, int]:
        """Recover a client that is known to be dead."""
        noticed_ns = time.monotonic_ns()
        if word >> 60 == JOINING:
            self.endpoint.cas(slot_address(slot), word, word & slots.INCARNATION_MASK)
            return {"clients": 0, "objects": 0, "blocks": 0}
        restored = self.restore(slot, word)
        if restored["clients"]:
            took_ns = time.monotonic_ns() - noticed_ns
            self.note(RECOVERED, client_id(slot, word), self.pid(word), took_ns)
        return restored

    def gone(self, ident: int, what: str, step: int = 0) -> bool:
        """Whether the client `ident`, which keeps others from `what`, is no longer a client.

        Recovers it when it is dead. Fences it when it has kept us waiting for a lease in one
        operation, or outside of any, while it made no `progress` and `step` did not change: a word
        in the resource that counts its progress.
        """
        if not self.ended(ident, what, step):
            return False
        place = None if ident in (0, self.ident) else self.place(ident)
        if place is not None:
            self.recover(*place)
        return True

    def ended(self, ident: int, what: str, step: int = 0) -> bool:
        """As `gone`, but does not recover a client that is dead or was killed: it is provably dead.

        For a client that is recovering another one.
        """
        if ident == 0 or ident == self.ident:
            return True
        place = self.place(ident)
        if place is None or self.dead(*place, waiting=True):
            return True
        slot, word = place
        seen = self.activity(slot)
        return self.overdue((ident, what), (seen, step), steadily=True) and self.end(
            slot, word, what, seen
        )

    def activity(self, slot: int) -> tuple[int, int]:
        """The pin and the progress word of a slot's client: one of them changes if it gets on."""
        at = slot_address(slot)
        progress = self.endpoint.load(at + slots.PROGRESS)
        # ORDER: the pin last: a client that is fenced for it has it until then.
        return self.endpoint.load(at + slots.PIN), progress

    def lives(self, ident: int) -> bool:
        """Whether the client `ident` has its slot, and no client has found it dead."""
        place = self.place(ident)
        return place is not None and place[1] >> 60 == LIVE and not self.dead(*place)

    def place(self, ident: int) -> tuple[int, int] | None:
        """Slot and state word of the client `ident`, which may be dead; None: it has no slot."""
        slot = ident >> slots.INCARNATION_BITS
        word = self.endpoint.load(slot_address(slot))
        return (slot, word) if word >> 60 != FREE and client_id(slot, word) == ident else None

    def progress(self) -> None:
        """Show clients that wait for this client's work that it does not stand still."""
        self.endpoint.faa(self.client.slot + slots.PROGRESS, 1)

    def hurry(self, laggard: Pinned, what: str = "memory that it may be reading") -> bool:
        """Recover or fence a client in an operation that keeps memory from being reused, or `what`.

        True when it no longer does so; False when it is alive and has not stood still for a lease,
        or may not be fenced, or is dead and cannot be recovered: it has blocks on a node that only
        this process has lost.
        """
        slot, word, pin, _ = laggard
        if self.ours(slot):
            return False
        if self.endpoint.load(slot_address(slot) + slots.PIN) != pin:
            return True
        if self._ends_idle_pin(slot, word):
            return True
        if not (self.dead(slot, word, waiting=True) or self.end_if_still("memory", laggard, what)):
            return False
        self.recover(slot, word)
        return self.place(client_id(slot, word)) is None

    def _ends_idle_pin(self, slot: int, word: int) -> bool:
        """Take back the pin of another handle of this process, if that is in no operation: memory
        was damaged. Another process could not tell that handle from a client that stands still."""
        if self.pid(word) != os.getpid() or not self.watcher.locks_tell:
            return False
        for other in list(_handles):
            client = other.client
            if other.pool != self.pool or (client.slot, client.word) != (slot_address(slot), word):
                continue
            if client.ident and other.endpoint.begin_idle():
                try:
                    client.unpin()
                except ClientError:
                    pass  # it has resigned: its next operation says so
                finally:
                    other.endpoint.end()
                return True
        return False

    def stands_still(self, what: str, laggard: Pinned) -> bool:
        """Whether it has been seen in the same operation, without progress, for a whole lease."""
        return self._stands_still(what, laggard, self.activity(laggard.slot))

    def _stands_still(self, what: str, laggard: Pinned, seen: tuple[int, int]) -> bool:
        # The pin that it has now may be another one: a recoverer changes its own (`share_pin`).
        hold = (laggard.word, laggard.pin, seen[1])
        return self.overdue((what, laggard.slot), hold, steadily=True)

    def fail_node(self, node: int, generation: int) -> bool:
        """Mark a memory node as failed, for every client, if it has still that memory; whether
        that changed its state."""
        sound, failed = node_word(generation, IN_SERVICE), node_word(generation, FAILED)
        done = self.endpoint.cas(NODE_STATES + 8 * node, sound, failed) == sound
        self.endpoint.dirty(NODE_STATES + 8 * node, 8)
        if done:
            self.note(NODE_FAILED, node)
        return bool(done)

    # ---- fencing ------------------------------------------------------------------------------

    def fence(self, slot: int, word: int, what: str) -> bool:
        """Make a client provably dead and recover it; False when policy or rights forbid that."""
        ended = self.end(slot, word, what)
        if ended:
            self.recover(slot, word)
        return ended

    def end_if_still(self, key: str, laggard: Pinned, what: str) -> bool:
        """`end`, if the client `stands_still`; whether it is provably dead."""
        seen = self.activity(laggard.slot)
        if seen[0] != laggard.pin:
            # We may have been paused since its pin was read, and for longer than a lease.
            return False
        return self._stands_still(key, laggard, seen) and self.end(
            laggard.slot, laggard.word, what, seen
        )

    def end(self, slot: int, word: int, what: str, seen: tuple[int, int] | None = None) -> bool:
        """Make a client provably dead; False when policy or rights forbid that, or it has got on:
        its `activity` is another one than was `seen`."""
        pid = self.pid(word)
        if self.parameters.fence == "wait" or pid == os.getpid() or not self.is_local(slot):
            self.suspend(slot, word, what)
            self.remote.ask(slot)
            return False
        if self.endpoint.load(slot_address(slot)) != word:
            return True
        took_ns = fencing.kill(self, slot, word, what, seen)
        if took_ns:
            self.note(FENCED, client_id(slot, word), pid, took_ns)
            return True
        if seen is not None and self.activity(slot) != seen:
            return False
        if self.endpoint.load(slot_address(slot)) != word or self.dead(slot, word):
            return True
        if (
            self._is_locked_here(slot)
            and self.locks is not None
            and self.locks.inherited(pid, slot)
        ):
            return True
        self.suspend(slot, word, what)
        return False

    def suspend(self, slot: int, word: int, what: str) -> None:
        """Name a client for which all others wait, once."""
        if word not in self._named:
            self._named.add(word)
            self.note(SUSPENDED, client_id(slot, word), self.pid(word))
            log.warning(
                "%s: everyone waits for process %s, which stands still and keeps %s",
                self.pool, self.process(slot, word), what,
            )  # fmt: skip

    # ---- the log --------------------------------------------------------------------------------

    def note(self, kind: int, subject: int, pid: int = 0, took_ns: int = 0) -> None:
        """Write an event to the ring, and, at level INFO, to the log "limpet.events"."""
        events.note(self.endpoint, kind, subject, pid, self.ident, took_ns)
        events.log.info(
            "%s: %s: %s %d, pid %d, after %.1f ms", self.pool, events.EVENT_KINDS[kind],
            "client" if pid else "node", subject, pid, took_ns / 1e6,
        )  # fmt: skip

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        """The last events, oldest first, from number `since` on: see events.py."""
        return events.read(self.endpoint, since)
