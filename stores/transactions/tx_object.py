"""TXObj: an object that transactions wrap (rTX section 4.2), as a participant of one.

In memory a TXObj is 16 bytes, at an address that stays its own for ever (the paper's mptr):

    0     LLLock   locked, or the version of the data (lllock.py)
    8     pointer  to the data; vacant: it has none (stores/core/records.py)

The data is written anew and not in place, so a reader has all of one version or all of the next.
The data begins with the lock state under which it was written. A kill leaves behind what lllock.py
and log.py say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.transactions.layout import LATE_SIZE
from limpet.stores.transactions.participant import Participant

if TYPE_CHECKING:
    from limpet.stores.transactions.lllock import LLLocks
    from limpet.stores.transactions.log import Log
    from limpet.stores.transactions.staged import NewData


class TXObj(Participant):
    """A wrapped object that a transaction writes."""

    def __init__(
        self,
        locks: LLLocks,
        at: int,
        old: int,
        new: int,
        version: int = 0,
        data: NewData | None = None,
    ) -> None:
        """As `stage` has it."""
        self.stage(locks, at, version, old, data, 0 if data is None else data.size)
        self.new = new

    def stage(
        self, locks: LLLocks, at: int, version: int, old: int, data: NewData | None, size: int
    ) -> None:
        """It is to be written. `version`: what the LLLock was when the object was read; `old`: the
        pointer, read after that; `data`: `size` bytes, or None to have the object be vacant.
        An object that is not prepared is locked only to be read: its entry has no pointers.

        If the LLLock can be taken from the version, the pointer is `old` (lllock.py), so the log
        can say so before that.
        """
        self.describe(at, old, 0)
        self.locks = locks
        self.version = version
        self.data: Any = data
        self.size = size
        self.ticket = 0
        self.locked = False
        """Whether this client has locked it."""
        self.applied = False
        """Whether `publish` has posted."""

    def node(self) -> int:
        return self.at >> NODE_SHIFT & 0xFF

    def sizes(self) -> list[int]:
        return [] if self.data is None else [self.size]

    def reserve(self, log: Log, allocator: Any) -> bool:
        if self.data is None:
            self.new = self.locks.vacated()
        elif self.size > LATE_SIZE:
            return True
        else:
            self.new = allocator.next_object(self.node(), self.size, 1)
            if not self.new:
                return False
            self.locks.endpoint.prefetch(self.new & ADDRESS_MASK, self.size, True)
        log.note(self)
        return True

    def write_new(self, log: Log) -> None:
        if self.data is not None and self.new:
            self.data.write(self.new & ADDRESS_MASK, log.lock_state)

    def prepare(self, log: Log, allocator: Any) -> bool:
        if self.data is None:
            return True
        if self.new:
            log.use(self.new)
            return True
        reference: int = allocator.allocate(self.node(), self.size, 1)
        if not reference:
            return False
        self.data.write(reference & ADDRESS_MASK, log.lock_state)
        self.new = reference
        log.note_late(self)
        return True

    def post_lock(self, state: int) -> None:
        self.ticket = self.locks.post_acquire(self.at, self.version, state)

    def has_locked(self) -> bool:
        self.locked = self.locks.endpoint.result(self.ticket) == self.version
        # CRASH(locked): a client that meets the lock aborts it when the lease is over.
        if not self.locked:
            self.busy = self.at
        return self.locked

    def publish(self) -> None:
        """Swing the pointer."""
        self.applied = False
        self.ticket = self.locks.post_install(self.at, self.old, self.new)
        self.applied = True
        # CRASH(installing): some objects are new; the next client goes on.

    def release(self, state: int, committed: bool) -> None:
        """Unlock the object, to a new version."""
        # ORDER: after its pointer is swung, on one node.
        self.locks.post_release(self.at, state)
        # CRASH(releasing): some locks are released; the next client goes on.

    def has_applied(self) -> bool:
        return self.applied and self.locks.endpoint.result(self.ticket) == self.old

    def undo(self, state: int) -> None:
        if self.locked:
            self.locks.endpoint.post_cas(self.at, state, self.version)

    def unlinked(self, committed: bool, found: list[int]) -> None:
        pointer = self.old if committed else self.new
        if not is_vacant(pointer):
            found.append(pointer & REFERENCE_MASK)

    def free_unlinked(self, log: Log, committed: bool) -> None:
        pointer = self.old if committed else self.new
        if not is_vacant(pointer):
            log.free(pointer & REFERENCE_MASK)

    def named(self, committed: bool) -> list[tuple[int, int]]:
        place = self.at + POINTER
        return [(self.old, place), (self.new, place)] if committed else [(self.new, place)]
