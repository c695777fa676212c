"""The owner of a lock, and the repair of a table after a dead client (RCuckoo section 4).

Detection. A client that waits for a lock, or for a row that is not whole, looks for journals with
that lock in a group that is held or unsure. If the owner of one is dead, the client recovers it; if
it stands still for a lease, it is killed first (membership.py). A client whose journal changes does
not stand still, whatever the row under the lock looks like (C4). The recovery of a client whose
client journal names its journal repairs the table (`resolved`).

Lease. One client at a time repairs a table: word 0 has its id. It is taken over only from a client
that is provably dead, so no late write of an earlier repairer can arrive (C7, G1). The paper's
leases are for regions of a table and expire.

Repair, under the lease, of a journal whose owner is provably dead
    1. with a path: the new entry goes into its first row, which is written last. If that row is
       whole and has the version from before, no client has seen the new entry, and the
       path is undone: from the second row on, each entry that came is replaced by the one that was
       there before and is now in the next row; the last one is emptied. A row that is whole with
       its version from before, or two above, needs no change. If the first row is not
       whole, or new, the operation has taken effect, or no client can tell: it is completed, with
       the redo image
    2. the state without a path; then the groups are given back from the last one on, as their
       owner would have. Of a group that is unsure, the bits that are `stranded`
    3. the state of a journal at rest; the lease

A repairer that dies leaves a journal that the next one repairs in the same way: each write is the
same again, or left out. So no torn row is made valid as it is (the paper's states 1 and 3), and of
two copies the good one is not cleared (state 2): C1. If an entry is in two rows, the dead client
had locked the second one, too, and it stays locked until the end (C6).

Stranded. Each bit of an unsure group of a dead client is decided by itself, by looks at its word:

    - a bit that is seen clear, or surely held by another client, was not the dead one's: only the
      holder of the lease gives the dead client's bits back, and no client gets them meanwhile. It
      is decided
    - a bit that is set, and that no living client has at that moment, is a dead client's. No living
      client has it if no journal has it in a group that is held, or, of a living client, unsure,
      and no state of any journal changes from before to after the look at the bit: a client that
      had the bit would have shown it in its state all the while

Clients that have been refused look at the word until the bits are clear, and so their states do not
change. Those of clients at work elsewhere do, all the time; so the states are read as fast as
possible, those that change most often last before the word and first after it (trap C12). The
repairer shows progress at every look: it is at work, however long that takes.
"""

from __future__ import annotations

import functools
import operator
from array import array
from collections import Counter
from typing import Any, Final, NamedTuple

from limpet.shm.endpoint.layout import NODE_SHIFT, SLOTS_USED
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.rcuckoo.layout import (
    ANY,
    COUNT_MASK,
    COUNT_SHIFT,
    GROUPS,
    GROUPS_MAX,
    HELD_MASK,
    JOURNALS,
    LOOKS_MAX,
    OWNER,
    PATH,
    PATH_MASK,
    PATH_MAX,
    PATH_SHIFT,
    REDO,
    SEQUENCE_SHIFT,
    STATE,
    UNSURE,
)

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
REST_MASK: Final = MASK >> SEQUENCE_SHIFT << SEQUENCE_SHIFT
LOOKS_EVERY: Final = 8
LOOKS_BETWEEN: Final = 32
"""Glances at a word in a row: the first one after a pause is slow, and sees the states of all
running clients change."""
JOURNAL: Final = 1
"""In a client journal: the reference is the address of a journal."""


class JournalLook(NamedTuple):
    """A journal as it was read: its state word and its groups."""

    at: int
    owner: int
    state: int
    groups: list[tuple[int, int]]

    @property
    def held(self) -> int:
        return self.state & HELD_MASK

    @property
    def unsure(self) -> bool:
        return bool(self.state & UNSURE)

    def has(self, word: int) -> int:
        """The bits of a word of the lock table that are surely held."""
        return sum(bits for at, bits in self.groups[: self.held] if at == word)

    def may_have(self, word: int) -> int:
        """The bits that are held or may be held."""
        known = self.held + self.unsure
        return sum(bits for at, bits in self.groups[:known] if at == word)


class Repair:
    """Repairs of the table at address `base`, by the client of a store's handle."""

    def __init__(self, store: Any, base: int) -> None:
        self.store = store
        self.base = base
        self.endpoint = store.endpoint
        self.membership = store.pool.membership
        self.what = f"a lock of {store.name!r}"

    # ---- the owner of a lock --------------------------------------------------------------------

    def recover_owners(self, word: int, bits: int) -> None:
        """Recover clients that have, or may have, these locks, if they are dead or stand still."""
        there = self.store.while_there
        for look in there(self.looks):
            if look.may_have(word) & bits and self._gone(look):
                there(self.repair, look.at)  # most often its recovery has done that
        holder = there(self.endpoint.load, self.base)
        if holder:
            self.membership.gone(holder, f"the lease of {self.store.name!r}")

    def clear(self, word: int, bits: int) -> None:
        """As `recover_owners`, for a client in the midst of a recovery, which recovers no other
        client."""
        for look in self.looks():
            if look.may_have(word) & bits and self._ended(look):
                self.repair(look.at)

    def _of(self, look: JournalLook) -> tuple[str, int]:
        """Resource and hold of our wait: a holder's state of its journal never comes again."""
        return self.what, look.state

    def looks(self) -> list[JournalLook]:
        """All journals that are not at rest."""
        return [look for look in map(self._read_journal, self._journals()) if look is not None]

    def _read_journal(self, at: int) -> JournalLook | None:
        """A journal, if it is not at rest; read again until it does not change meanwhile."""
        while True:
            state = self.endpoint.load(at + STATE)
            if not state >> COUNT_SHIFT & COUNT_MASK:
                return None
            look = self._read_journal_in(at, state)
            if look is not None:
                return look

    def _read_journal_in(self, at: int, state: int) -> JournalLook | None:
        """A journal, if it is still in this state after the read."""
        load = self.endpoint.load
        count = state >> COUNT_SHIFT & COUNT_MASK
        pairs = range(at + GROUPS, at + GROUPS + 16 * min(count, GROUPS_MAX), 16)
        groups = [(load(pair), load(pair + 8)) for pair in pairs]
        owner = load(at + OWNER) if count else 0
        if load(at + STATE) != state:
            return None
        locks = range(
            self.base + self.store.lookup.locks_at, self.base + self.store.lookup.rows_at, 8
        )
        known = (state & HELD_MASK) + bool(state & UNSURE)
        if known > count or count > GROUPS_MAX or not all(word in locks for word, _ in groups):
            raise self._damaged(at, state)
        return JournalLook(at, owner, state, groups)

    def _damaged(self, at: int, state: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.store.name}: the journal at {at:#x} is damaged, in state {state:#x}; destroy "
            "the pool"
        )

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
        if self._read_journal(at) is None:
            return
        try:
            if not self._take_lease(at):
                return
            look = self._read_journal(at)
            if look is None or not self._is_over(look.owner):
                return  # its slot has another client by now
            self.store.lookup.enter_table(self.base)
            self._restore(look)
        finally:
            self.endpoint.cas(self.base, self.membership.ident, 0)

    def _restore(self, look: JournalLook) -> None:
        """Put rows and locks into the state that they would have without the journal's owner."""
        if look.state >> PATH_SHIFT & PATH_MASK:
            self._settle_path(look)
        # ORDER: the rows before the locks, also of an entry that is in two rows (C6).
        self._give_back(look)

    def _is_over(self, owner: int) -> bool:
        return owner == self.membership.ident or not self.membership.lives(owner)

    def _take_lease(self, at: int) -> bool:
        """Take the lease to repair the table; False: the journal there needs no repair any more."""
        me = self.membership.ident
        attempt = 0
        # ORDER: before the lease, so that a waiting client does not take this
        # repair for the last one.
        self.membership.progress()
        while True:
            holder = self.endpoint.cas(self.base, 0, me)
            if holder in (0, me):
                return True
            what = f"the lease of {self.store.name!r}"
            ended = self.membership.ended(holder, what)
            if ended and self.endpoint.cas(self.base, holder, me) == holder:
                return True
            if self._read_journal(at) is None:
                return False  # it was repaired by the client that had the lease
            attempt += 1
            self.store.show_progress(0)  # we wait with a pin
            self.endpoint.pause(attempt)

    # ---- the path -------------------------------------------------------------------------------

    def _settle_path(self, look: JournalLook) -> None:
        rows = self.store.lookup.rows
        rows.room(2)
        length = look.state >> PATH_SHIFT & PATH_MASK
        if length > PATH_MAX:
            raise self._damaged(look.at, look.state)
        path = [self._step(look.at + PATH + 16 * index) for index in range(length)]
        if any(row >= self.store.lookup.row_count for row, _, _ in path):
            raise self._damaged(look.at, look.state)
        row, slot, version = path[0]
        rows.read(0, row)
        if rows.is_whole(0) and rows.version(0) == version:
            self._undo(path)
        elif not rows.is_whole(0) or rows.version(0) != version + 1 & MASK:
            rows.load_entry(0, slot, look.at + REDO)
            rows.write(0, row, slot, version + 1 & MASK)
        # CRASH(repairing): the next repairer finds the rows repaired, or goes on.
        self._say(look, len(look.groups), 0)

    def _step(self, at: int) -> tuple[int, int, int]:
        """Row, slot and version of a step of a path."""
        place = self.endpoint.load(at)
        return place >> 3, place & 7, self.endpoint.load(at + 8)

    def _undo(self, path: list[tuple[int, int, int]]) -> None:
        rows = self.store.lookup.rows
        for index in range(1, len(path)):
            row, slot, version = path[index]
            rows.read(0, row)
            undone = version + 2 & MASK
            if rows.is_whole(0) and rows.version(0) in (version, undone):
                continue
            if index + 1 < len(path):
                rows.read(1, path[index + 1][0])
                rows.copy(0, slot, 1, path[index + 1][1])
            else:
                rows.clear(0, slot)
            rows.write(0, row, slot, undone)

    # ---- the locks ------------------------------------------------------------------------------

    def _say(self, look: JournalLook, held: int, unsure: int) -> None:
        count = len(look.groups) << COUNT_SHIFT
        self.endpoint.store(look.at + STATE, look.state & REST_MASK | count | unsure | held)

    def _give_back(self, look: JournalLook) -> None:
        held = look.held
        if look.unsure:
            self._give_back_unsure(look, *look.groups[held])
        while held:
            held -= 1
            self._say(look, held, UNSURE)
            self._give_back_bits(*look.groups[held])
        self.endpoint.store(look.at + STATE, look.state & REST_MASK)

    def _give_back_unsure(self, look: JournalLook, word: int, bits: int) -> None:
        self._give_back_bits(word, self._stranded(look, word, bits))

    def _give_back_bits(self, word: int, bits: int) -> None:
        self.endpoint.mcas(word, 0, 0, 0, bits)

    def _stranded(self, mine: JournalLook, word: int, bits: int) -> int:
        """The bits among these that are set in a word, and that no living client has."""
        attempt = 0
        changes: Counter[int] = Counter()
        while True:
            journals = array("Q", self._others(mine.at, changes))
            has, may_have = array("Q", journals), array("Q", journals)
            found = self.store.lookup.journal.glance(journals, word, has, may_have)
            bits &= found & ~functools.reduce(operator.or_, has, 0)
            changes.update(at for at, some in zip(journals, may_have, strict=True) if some == ANY)
            if self._is_settled(word, bits, journals, may_have):
                return bits
            attempt += 1
            if attempt % LOOKS_BETWEEN == 0:
                self.membership.progress()
                self.endpoint.pause(attempt // LOOKS_BETWEEN)

    def _others(self, but: int, changes: Counter[int]) -> list[int]:
        """Addresses of all journals but one, those whose states change most often last."""
        others = (at for at in self._journals() if at != but)
        return sorted(others, key=changes.__getitem__)

    def _is_settled(self, word: int, bits: int, journals: Any, may_have: Any) -> bool:
        """Whether no client alive has any of these bits, going by that look at `journals`."""
        suspects = [at for at, some in zip(journals, may_have, strict=True) if some & bits]
        # ORDER: after the word: no client has joined since the states were read.
        return not bits or (
            len(self._journals()) == len(journals) + 1
            and all(self._is_over_in(at, word, bits) for at in suspects)
        )

    def _is_over_in(self, at: int, word: int, bits: int) -> bool:
        """Whether a journal may have these bits, and its owner is dead, perhaps fenced just now."""
        look = self._read_journal(at)
        return look is not None and bool(look.may_have(word) & bits) and self._ended(look)

    def _journals(self) -> range:
        """Addresses of all journals that may be in use."""
        first, size = self.base + JOURNALS, self.store.lookup.journal_size
        return range(first, first + size * self.endpoint.load(SLOTS_USED), size)

    def _gone(self, look: JournalLook) -> bool:
        """Whether a journal's owner is gone, or made to go by the pool's policy, and recovered."""
        return bool(self.membership.gone(look.owner, *self._of(look)))

    def _ended(self, look: JournalLook) -> bool:
        mine = look.owner == self.membership.ident
        return not mine and bool(self.membership.ended(look.owner, *self._of(look)))


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
    if lookup.node_of(key) != reference >> NODE_SHIFT & 0xFF:
        return False  # not written yet: this is an old key, whose table may be lost
    attempt = 0
    while True:
        found = lookup.header_of(at, key)
        if found is not None:
            return bool(found & REFERENCE_MASK == reference)
        attempt += 1
        if attempt > LOOKS_MAX and lookup.is_damaged(at):
            return True
        store.endpoint.pause(attempt)
        if attempt % LOOKS_EVERY == 0:
            locks = lookup.locks
            Repair(store, lookup.tables[at.table]).clear(locks.busy, locks.busy_bits)
