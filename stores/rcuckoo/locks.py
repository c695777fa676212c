"""The lock table: a bit for each lock, taken and given back by masked CAS (RCuckoo 3.4).

A lock protects `rows_per_lock` rows. Locks are virtual: lock l is bit l mod P of the table's P, so
distant rows may share a bit. Of the bits of a 64-bit word, `locks_per_message` adjacent ones (64 by
default) can be taken by one masked CAS, all or none: a group. An operation's groups are taken in
ascending order of their bits, after the modulo, one round trip each.

A client that meets a taken lock gives its own back (as in section 4.1; in section 3.4.1 it spins
while it holds, so that one dead client could stop all), and tries again when it has seen the bits
clear. Locks are given back by a masked CAS that compares nothing, and so cannot fail.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.fabric import bit
from limpet.stores.rcuckoo.layout import GROUPS_MAX, UNSURE

if TYPE_CHECKING:
    from limpet.stores.rcuckoo.journal import Journal
    from limpet.stores.rcuckoo.parameters import RcuckooParameters


class Locks:
    """The locks of the table whose lock table is at address `base`, which its user sets."""

    def __init__(self, endpoint: Any, parameters: RcuckooParameters, journal: Journal) -> None:
        self.endpoint = endpoint
        self.journal = journal
        self.base = 0
        self.rows_per_lock = parameters.rows_per_lock
        self.locks = parameters.locks
        self.message = parameters.locks_per_message
        self.bits = array("Q", bytes(8 * GROUPS_MAX))
        self.words = array("Q", bytes(8 * GROUPS_MAX))
        self.messages = array("Q", bytes(8 * GROUPS_MAX))
        self.count = 0
        self.busy = 0
        self.busy_bits = 0
        """The word, and its bits, of the lock for which we wait."""

    # ---- planning -------------------------------------------------------------------------------

    def plan(self) -> None:
        """Begin a set of locks."""
        self.count = 0

    def lock_of(self, row: int) -> int:
        """The bit of the lock table for a row."""
        return row // self.rows_per_lock % self.locks

    def add(self, row: int) -> None:
        """Add the row's lock to the set, which has room for 8 groups."""
        lock = self.lock_of(row)
        message = lock // self.message
        bits = bit(lock & 63)
        index = self.count
        while index and self.messages[index - 1] >= message:
            index -= 1
        if index == self.count or self.messages[index] != message:
            self._make_room(index)
            self.messages[index] = message
            self.words[index] = self.base + (lock >> 6 << 3)
            self.bits[index] = 0
        self.bits[index] |= bits

    def _make_room(self, index: int) -> None:
        """Move the groups from `index` on up by one."""
        later = self.count
        while later > index:
            self.messages[later] = self.messages[later - 1]
            self.words[later] = self.words[later - 1]
            self.bits[later] = self.bits[later - 1]
            later -= 1
        self.count += 1

    def wait_for(self, row: int) -> None:
        """Note that we wait for the row's lock."""
        lock = self.lock_of(row)
        self.busy = self.base + (lock >> 6 << 3)
        self.busy_bits = bit(lock & 63)

    # ---- taking and giving back -----------------------------------------------------------------

    def are_free(self) -> bool:
        """Whether no client has a lock of the set, before another attempt.

        If so, the look counts as part of the attempt: the paper's clients attempt without looking.
        """
        endpoint = self.endpoint
        for index in range(self.count):
            if endpoint.load(self.words[index]) & self.bits[index]:
                self.busy = self.words[index]
                self.busy_bits = self.bits[index]
                endpoint.wait()
                return False
        return True

    def acquire(self) -> bool:
        """Take the set; False, and no lock is held, when one of them is taken.

        A round trip for each group but the last, whose caller ends it.
        """
        endpoint = self.endpoint
        journal = self.journal
        journal.publish(self.words, self.bits, self.count)
        for index in range(self.count):
            bits = self.bits[index]
            # CRASH(unsure): a lock in our group that is set, and that no living client may have, is
            # a dead client's; the repairing client gives it back.
            if endpoint.mcas(self.words[index], 0, bits, bits, bits) & bits:
                journal.say(index, 0, 0)
                self.busy = self.words[index]
                self.busy_bits = bits
                endpoint.wait()
                self.release(index)
                return False
            if index + 1 < self.count:
                journal.say(index + 1, UNSURE, 0)
                endpoint.wait()
        journal.say(self.count, 0, 0)
        # CRASH(locked): the journal names the locks; the repairing client gives them back.
        return True

    def release(self, held: int) -> None:
        """Give back the first `held` groups of the set, in the phase that its caller ends."""
        while held:
            held -= 1
            self.journal.say(held, UNSURE, 0)
            # ORDER: the rows, and the state without a path, before the locks.
            # CRASH(unlocking): as `unsure`.
            self.endpoint.mcas(self.words[held], 0, 0, 0, self.bits[held])
        self.journal.end()
