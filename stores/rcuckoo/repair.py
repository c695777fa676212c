"""The holder of a lock, and the repair of a table after a dead client (RCuckoo section 4).

Detection. A client that waits for a lock, or for a row that is not whole, reads the holder in the
lock. If that is dead, the client recovers it; if it stands still for a lease, it is killed first
(membership.py). A client whose journal changes does not stand still, whatever the row under the
lock looks like (C4). The recovery of a client whose client journal names its journal repairs the
table (`resolved`).

Lease. One client at a time repairs for a journal, whose word `lease` has its id. It is taken over
only from a client that is provably dead, so no late write of an earlier repairer can arrive (C7,
G1). Other journals of the table are repaired meanwhile. (The paper's leases are for regions of a
table, and expire.)

Repair, under the lease, of a journal whose owner is provably dead
    1. with a path, if all locks of the journal are the owner's. The new entry goes into the path's
       first row, which is written last. If that row is whole and has the sequence from before, no
       client has seen the new entry, and the path is undone: from the second row on, each entry
       that came is replaced by the one that was there before and is now in the next row; the last
       one is emptied. A row that is whole with its sequence from before, or four above, needs no
       change. If the first row is not whole, or new, the operation has taken effect, or no client
       can tell: it is completed, with the redo image
    2. each lock that is the owner's is given back, by a CAS from the owner's id: another client's
       stays (C5), and so do the others of the journal, whichever are free by now (C8)

If one of the locks is not the owner's, the owner had not all of them yet, or was about to give them
back: there is nothing to repair. A repairer that dies leaves a journal that the next one repairs in
the same way: each write is the same again, or left out. So no torn row is made valid as it is (the
paper's states 1 and 3), and of two copies the good one is not cleared (state 2): C1. If an entry is
in two rows, the dead client had locked the second one, too, and it stays locked until the end (C6).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from limpet.shm.endpoint.layout import NODE_SHIFT, SLOTS_USED
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.rcuckoo.layout import (
    COUNT_MASK,
    HELD_MAX,
    LEASE,
    LOOKS_MAX,
    OWNER,
    PATH_MASK,
    PATH_MAX,
    PATH_SHIFT,
    REDO,
    REDO_AT,
    STATE,
)
from limpet.stores.rcuckoo.rows import Entry

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
WRITTEN: Final = 2
UNDONE: Final = 4
"""Added to the sequence that a row of the path had before: after the write; after the undo."""
LOOKS_EVERY: Final = 8
JOURNAL: Final = 1
"""In a client journal: the reference is the address of a journal."""
Step = tuple[int, int, int]
"""Row, entry, and sequence of the row before."""


class JournalLook(NamedTuple):
    """A journal as it was read: its owner, the locks that it names, and those of them that are its
    owner's; the path."""

    at: int
    owner: int
    named: list[int]
    held: list[int]
    path: list[Step]


class Repair:
    """Repairs of the table at address `base`, by the client of a store's handle."""

    def __init__(self, store: Any, base: int) -> None:
        self.store = store
        self.base = base
        self.endpoint = store.endpoint
        self.membership = store.pool.membership
        self.what = f"a lock of {store.name!r}"

    # ---- the holder of a lock -------------------------------------------------------------------

    def recover_holder(self, word: int) -> None:
        """Recover the client that has this lock, if it is dead or stands still."""
        there = self.store.while_there
        holder, hold = there(self._read_holder, word)
        if holder and self._gone(holder, hold):
            there(self.repair, self.journal_of(holder))  # most often its recovery has done that

    def clear(self, word: int) -> None:
        """As `recover_holder`, for a client in the midst of a recovery, which recovers no other
        client."""
        holder, hold = self._read_holder(word)
        if holder and holder != self.membership.ident and self._ended(holder, hold):
            self.repair(self.journal_of(holder))

    def _read_holder(self, word: int) -> tuple[int, int]:
        """The holder of a lock, and the state of its journal, which never comes again; 0: none."""
        holder = self.endpoint.load(word) if word else 0
        if not self.has_journal(holder):
            return 0, 0
        return holder, self.endpoint.load(self.journal_of(holder) + STATE)

    def has_journal(self, ident: int) -> bool:
        """Whether there is a client slot, and so a journal, for this id; else it is damaged."""
        return ident > 0 and ident >> INCARNATION_BITS < self.endpoint.load(SLOTS_USED)

    def journal_of(self, ident: int) -> int:
        """Address of the journal of a client."""
        return int(self.base + (ident >> INCARNATION_BITS) * self.store.lookup.journal_size)

    def journals(self) -> range:
        """Addresses of all journals that may be in use."""
        size = self.store.lookup.journal_size
        return range(self.base, self.base + size * self.endpoint.load(SLOTS_USED), size)

    def look(self, at: int) -> JournalLook:
        """Read a journal. Raises StoreCorrupt if it is damaged."""
        load = self.endpoint.load
        lookup = self.store.lookup
        owner, state = load(at + OWNER), load(at + STATE)
        count, length = state & COUNT_MASK, state >> PATH_SHIFT & PATH_MASK
        locks = range(self.base + lookup.locks_at, self.base + lookup.rows_at, 8)
        named = [load(at + STATE - 8 * left) for left in range(min(count, HELD_MAX), 0, -1)]
        path = [self._step(at + REDO - 16 * left) for left in range(length, 0, -1)]
        if (
            count > HELD_MAX
            or length > PATH_MAX
            or not all(word in locks for word in named)
            or any(row >= lookup.row_count for row, _, _ in path)
        ):
            raise StoreCorrupt(
                f"{self.store.name}: the journal at {at:#x} is damaged, in state {state:#x}; "
                "destroy the pool"
            )
        held = [word for word in named if load(word) == owner != 0]
        return JournalLook(at, owner, named, held, path)

    def _step(self, at: int) -> Step:
        """A step of a path."""
        place = self.endpoint.load(at)
        return place >> 3, place & 7, self.endpoint.load(at + 8)

    # ---- pairs of a client journal --------------------------------------------------------------

    @staticmethod
    def resolved(store: Any, reference: int) -> bool:
        """Decide a pair of a client journal: repair a journal; is an extent linked? True for
        a pair on a lost node, and for a damaged journal: the recovery of its client goes on, and
        clients that want its locks get an error.
        """
        try:
            if not reference & JOURNAL:
                return _linked(store, reference)
            journal = reference & ~JOURNAL
            for base in store.lookup.tables:
                if base <= journal < base + store.lookup.locks_at:
                    Repair(store, base).repair(journal)
        except (NodeFailed, StoreCorrupt):
            pass
        return True

    def repair(self, at: int) -> None:
        """Repair the table for the owner of a journal, if that is dead, or ourselves."""
        if not self.look(at).held:
            return
        try:
            if not self._take_lease(at):
                return
            look = self.look(at)
            if not self._is_over(look.owner):
                return  # its slot has another client by now
            self.store.lookup.enter_table(self.base)
            self._restore(look)
        finally:
            self.endpoint.cas(at + LEASE, self.membership.ident, 0)

    def _restore(self, look: JournalLook) -> None:
        """Put rows and locks into the state that they would have without the journal's owner."""
        if look.path and look.held == look.named:
            self._settle_path(look)
        # ORDER: the rows before the locks, also of an entry that is in two rows (C6).
        for word in look.held:
            self.endpoint.cas(word, look.owner, 0)

    def _is_over(self, owner: int) -> bool:
        return owner == self.membership.ident or not self.membership.lives(owner)

    def _take_lease(self, at: int) -> bool:
        """Take the lease to repair for a journal; False: that needs no repair any more."""
        me = self.membership.ident
        attempt = 0
        # ORDER: before the lease, so that a waiting client does not take this
        # repair for the last one.
        self.membership.progress()
        while True:
            holder = self.endpoint.cas(at + LEASE, 0, me)
            if holder in (0, me):
                return True
            what = f"the lease of {self.store.name!r}"
            ended = self.membership.ended(holder, what)
            if ended and self.endpoint.cas(at + LEASE, holder, me) == holder:
                return True
            if not self.look(at).held:
                return False  # it was repaired by the client that had the lease
            attempt += 1
            self.store.show_progress(0)  # we wait with a pin
            self.endpoint.pause(attempt)

    # ---- the path -------------------------------------------------------------------------------

    def _settle_path(self, look: JournalLook) -> None:
        rows = self.store.lookup.rows
        number, _, sequence = look.path[0]
        row = rows.read(number)
        if rows.is_whole(row) and row.sequence() == sequence:
            self._undo(look.path)
        elif not rows.is_whole(row) or row.sequence() != sequence + WRITTEN & MASK:
            self._redo(look)
        # CRASH(repairing): the next repairer finds the rows repaired, or goes on.
        self.endpoint.wait()

    def _redo(self, look: JournalLook) -> None:
        """Write the new entry into the first row of the path, from the redo image."""
        rows = self.store.lookup.rows
        number, slot, sequence = look.path[0]
        entry = Entry(rows.parameters)
        self.endpoint.read_words(look.at + REDO, entry.words, 1 + rows.entry_words, REDO_AT)
        entry.load(entry.words[REDO_AT])
        rows.post_entry(rows.read(number), number, slot, sequence + WRITTEN & MASK, entry)

    def _undo(self, path: list[Step]) -> None:
        rows = self.store.lookup.rows
        entry = Entry(rows.parameters)
        for index in range(1, len(path)):
            number, slot, sequence = path[index]
            row = rows.read(number)
            undone = sequence + UNDONE & MASK
            if rows.is_whole(row) and row.sequence() in (sequence, undone):
                continue
            entry.empty()
            if index + 1 < len(path):
                after, there, _ = path[index + 1]
                entry.copy(rows.read(after), there)
            rows.post_entry(row, number, slot, undone, entry)

    # ---- the policy -----------------------------------------------------------------------------

    def _gone(self, holder: int, hold: int) -> bool:
        """Whether a lock's holder is gone, or made to go by the pool's policy, and recovered."""
        return bool(self.membership.gone(holder, *self._of(hold)))

    def _ended(self, holder: int, hold: int) -> bool:
        return bool(self.membership.ended(holder, *self._of(hold)))

    def _of(self, hold: int) -> tuple[str, int]:
        """Resource and hold of our wait: a holder's state of its journal never comes again."""
        return self.what, hold


def _linked(store: Any, reference: int) -> bool:
    """Whether the rows of an extent's key link to it. The extent is intact: its client is pinned.

    True if no client can tell, as one of the rows is damaged: an extent that may be linked is not
    freed.
    """
    lookup, at = store.lookup, store.found
    objects = store.objects
    objects.load(reference)
    if not objects.fits(reference):
        return False
    key = objects.key()
    node, home = reference >> NODE_SHIFT & 0xFF, lookup.node_of(key)
    # what belongs on the node of a table may lie on one that was added
    if node != home and (
        node < store.pool.parameters.nodes or store.endpoint.failed(home << NODE_SHIFT)
    ):
        return False  # not written yet: this is an old key, whose table may be lost
    attempt = 0
    while True:
        found = lookup.link_of(at, key)
        if found is not None:
            return bool(found == reference)
        attempt += 1
        if attempt > LOOKS_MAX and lookup.is_damaged(at):
            return True
        store.endpoint.pause(attempt)
        if attempt % LOOKS_EVERY == 0:
            Repair(store, lookup.tables[at.table]).clear(lookup.locks.busy)
