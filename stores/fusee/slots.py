"""Changing the slots of a replicated index by rounds of SNAPSHOT (snapshot.py): a writer of slots.

An update and a delete are one WRITE of the slot; so is a swap, which depends on the value of the
slot's object, so it begins again if it loses, and so does an update that may have lost to one. To
fill a vacant slot is a round whose winner must make sure that no other slot gets the same key (the
paper does not; trap F10):

    (2) together with the CAS of the backups, read both of the key's buckets on the first backup. Of
        two inserts of one key, at least one finds the other there
        the client that has the first backup wins the round; others begin again, and now and then
        void it
        if other backups have another value, it looks at the primary next: until the primary has
        changed, that value is of its own round
        another slot with the key has been decided: withdraw. Another insert is open: the one at
        the lower address goes first, the other withdraws or, met again and again, is evicted
    (3) change the other backups that have another value; write INSERTED into the own object's log
        entry
    (4) CAS the primary
To withdraw, or to evict a client that stands in the way, is to make the round void.

Round trips without conflict: update and delete 4, insert 4, of which the first is the caller's. The
look at the primary is one more.

When nodes are lost (algorithms 3 and 4), a participant finds out how its round ended by the primary
and the log entries: `recall`.

With one replica left, there is no backup; then slots are changed as in `race`, except for the mark
in the log entry of the replaced object.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.core.names import shown
from limpet.stores.core.status import AGAIN, DONE, FULL
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.links import (
    BIRTH,
    DEATH,
    DELETING,
    ENTRY,
    FAILED,
    GONE,
    IDLE,
    INSERTED,
    INSERTING,
    OLD,
    PLACE_BITS,
    SWAPPING,
    UPDATING,
)
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Place, is_vacant, is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.race.slots import Slots

PATIENCE: Final = 8
"""How often an insert gives way."""


class Round:
    """The change that an operation was making when it lost a node: a slot from `old` to `new`.

    `link_address`: the slot's name. `doing`: of IDLE, UPDATING, SWAPPING, DELETING,
    INSERTING.
    """

    def __init__(self) -> None:
        self.doing = IDLE
        self.link_address = 0
        self.old = 0
        self.new = 0

    def begin(self, doing: int, link_address: int, old: int, new: int) -> None:
        """From now on the operation is in this round."""
        self.doing = doing
        self.link_address = link_address
        self.old = old
        self.new = new


class ReplicatedSlots(Slots):
    """Changes the slots of a replicated index."""

    def __init__(
        self, index: ReplicatedIndex, tables: ReplicatedTables, logged: LoggedObjects,
        sequential: bool = False,
    ) -> None:  # fmt: skip
        Slots.__init__(self, index, tables.client)
        self.tables = tables
        self.logged = logged
        self.slot = ReplicatedSlot(tables, logged, sequential)
        """The slot that an operation changes."""
        self.other = ReplicatedSlot(tables, logged, sequential)
        """A slot that stands in its way, or that a client journal names."""
        self.round = Round()

    # ---- updates and deletes ------------------------------------------------------------------

    def is_blind(self) -> bool:
        ticket = self.tables.post_swaps()
        self.endpoint.wait()
        self.tables.saw_swaps(ticket)
        return not self.tables.swapped

    def replace(self, place: Place, slot: int, desired: int) -> int:
        return self._take_part(place, slot, desired, UPDATING)

    def swap(self, place: Place, slot: int, desired: int) -> int:
        """As `replace`, if the slot still has `place.word` when it is changed, else AGAIN. Swaps
        are announced."""
        return self._take_part(place, slot, desired, SWAPPING)

    def _take_part(self, place: Place, slot: int, desired: int, doing: int) -> int:
        word = place.word
        if word & FROZEN:
            return FULL
        if not place.backups:
            self._mark_alone(word)
            return Slots.replace(self, place, slot, desired)
        self.slot.select(slot, place.head)
        link_address = self.slot.link_address
        self.round.begin(doing, link_address, word, desired)
        self.client.retarget(0, link_address)
        old = self.client.log(word & OBJECT_MASK, link_address | OLD)
        if self.slot.write(word, desired):
            self.client.drop(0)
            self.client.release(old)
            return DONE
        self.client.release(0)
        if self.slot.is_frozen_at(word):
            self.client.drop(old)
            return AGAIN
        self.client.release(old)
        return AGAIN if self.tables.swapped else DONE

    def remove(self, place: Place, slot: int) -> int:
        word = place.word
        if word & FROZEN:
            return FULL
        if not place.backups:
            self._mark_alone(word)
            return Slots.remove(self, place, slot)
        ticket = self.tables.ticket()
        self.slot.select(slot, place.head)
        link_address = self.slot.link_address
        self.round.begin(DELETING, link_address, word, ticket)
        old = self.client.log(word & OBJECT_MASK, link_address | OLD)
        won = self.slot.write(word, ticket)
        if not won and self.slot.is_frozen_at(word):
            self.client.drop(old)
        else:
            self.client.release(old)
        return DONE if won else AGAIN

    def _mark_alone(self, word: int) -> None:
        """Mark the object in a slot without backups as replaced.

        Its author may have lost a node as it was about to link it, and may not know yet that it is
        linked.
        """
        # With one replica of the index, no slot ever had a round.
        if self.tables.replicas > 1:
            self.logged.mark(word & OBJECT_MASK, DEATH, GONE)
            self.endpoint.wait()

    # ---- filling a vacant slot ----------------------------------------------------------------

    def insert(self, place: Place, key: bytes, desired: int, attempt: int) -> int:
        if not place.backups:
            return Slots.insert(self, place, key, desired, attempt)
        index = self.index.room(place)
        if index < 0:
            return FULL
        slot = self.slot
        slot.select(self.index.address(place, index), place.head)
        vacant = self.index.words[index]
        self.round.begin(INSERTING, slot.link_address, vacant, desired)
        self.client.retarget(0, slot.link_address)
        slot.propose(vacant, desired)
        # ORDER: the buckets after our CAS of the same backup; so one of two rivals sees the other.
        self._read_backup(place)
        self.endpoint.wait()
        # ORDER: the primary after the backups, so that their values were of this round; it is on
        # another node, so this is a phase of its own. The first backup alone does not show that: it
        # is cleared last, and others may have values of the next round.
        still = slot.proposed(vacant, desired) or self._still_has(vacant)
        if self.index.words[32 + index] != desired or not still:
            if self._loses_patience(attempt):
                slot.void(vacant)  # the client that fills it may be dead, or stand still
            return self._withdraw(desired, False)
        if self._rival_found(place, key, index, attempt):
            return self._withdraw(desired, True)
        # CRASH(inserting): no client completes it; it is made void.
        # Backups and mark in any order: with the mark, the backups still have to be equal.
        slot.change_backups(desired)
        self.logged.mark(desired & OBJECT_MASK, BIRTH, INSERTED)
        self.endpoint.wait()
        if not self._decide(vacant, desired):
            return self._withdraw(desired, True)
        self.client.drop(0)
        return DONE

    def _still_has(self, vacant: int) -> bool:
        """Whether the primary of the slot still has that word."""
        return self.slot.read() == vacant

    def _loses_patience(self, attempt: int) -> bool:
        """Whether an insert makes the round void that is in its way: now and then."""
        return attempt % PATIENCE == PATIENCE - 1

    def _decide(self, vacant: int, desired: int) -> bool:
        """Decide an insert; False: its round was made void."""
        # LINEARIZES: insert
        ticket = self.endpoint.post_cas(self.slot.address, vacant, desired)
        self.endpoint.wait()
        return self.endpoint.result(ticket) == vacant

    def _read_backup(self, place: Place) -> None:
        """Post a read of both combined buckets on the first backup into row 1 of the index's
        words."""
        first = self.tables.backup(place.first, place.head, 1)
        second = self.tables.backup(place.second, place.head, 1)
        self.endpoint.post_read(first, self.index.words, 16, 32)
        self.endpoint.post_read(second, self.index.words, 16, 48)

    def _withdraw(self, desired: int, hurry: bool) -> int:
        """Give up filling a slot; afterwards no replica has the proposal, unless it is linked."""
        if self.slot.resolve(desired & OBJECT_MASK, self.round.link_address, hurry):
            self.client.drop(0)
            return DONE
        self.client.retarget(0, 0)
        return AGAIN

    def _rival_found(self, place: Place, key: bytes, own: int, attempt: int) -> bool:
        """Whether the first backup has the key in another slot than `own` and we must give way."""
        index = self.index
        return self._rival_in(place, key, own, attempt, index.words, 0, index.words, 32)

    def _rival_in(
        self,
        place: Place,
        key: bytes,
        own: int,
        attempt: int,
        primary: Any,
        first: int,
        backup: Any,
        second: int,
    ) -> bool:
        """As `_rival_found`: the buckets on the primary are the words of `primary` from `first` on,
        those on the first backup the words of `backup` from `second` on."""
        fingerprint = place.hash & 0xFF
        for index in range(32):
            word = backup[second + index]
            if word == primary[first + index] and (not word or word >> 56 != fingerprint):
                continue  # most: empty, or another key's
            if not index & 7 or index == own:
                continue
            slot = self.index.address(place, index)
            if is_vacant(word):
                # Since the primary was read, the key may have been inserted there, and be deleted
                # again.
                if word != primary[first + index] and self._key_in(slot, key, fingerprint):
                    return True
            elif word >> 56 == fingerprint and is_valid(word):
                self.objects.post_keyed(word & OBJECT_MASK, key)
                self.endpoint.wait()
                if not self.objects.matches(key):
                    continue
                if attempt >= PATIENCE:
                    self._require_one_key(slot, word, place.head, key)
                if self._yield_to(slot, word, place.head, attempt):
                    return True
        return False

    def _key_in(self, slot: int, key: bytes, fingerprint: int) -> bool:
        """Whether the primary of the slot has the key."""
        word = self.slot.read_word(slot)
        if not is_valid(word) or word >> 56 != fingerprint:
            return False
        self.objects.post_keyed(word & OBJECT_MASK, key)
        self.endpoint.wait()
        return self.objects.matches(key)

    def _require_one_key(self, slot: int, word: int, head: int, key: bytes) -> None:
        """Raise StoreCorrupt if the first backup has our key in a slot that has another key.

        A proposal in a slot that is filled is of the key that is there. We would give way for ever.
        """
        theirs = self.slot.read_word(slot)
        # ORDER: the primary, the backup, the primary: so the backup had `word` beside `theirs`.
        there = self.slot.read_word(self.tables.backup(slot, head, 1))
        if there != word or not is_valid(theirs) or self._key_in(slot, key, word >> 56):
            return
        if self.slot.read_word(slot) == theirs:
            raise StoreCorrupt(
                f"{self.index.name}: the replicas of the slot at {slot:#x} have two keys, one of "
                f"them {shown(key)}: memory was damaged. Save what is left; make the store again"
            )

    def _yield_to(self, slot: int, word: int, head: int, attempt: int) -> bool:
        """Whether we give way to another slot with our key; if not, its round is void."""
        theirs = self.slot.read_word(slot)
        if is_valid(theirs) or (slot < self.slot.address and attempt < PATIENCE):
            return True
        # CRASH(evicting): a half-done eviction has no effect on the rival.
        return self.other.resolve(word & OBJECT_MASK, self.tables.link_address(slot, head), True)

    # ---- names in client journals ---------------------------------------------------------------

    def resolved(self, reference: int, link_address: int) -> bool:
        """Complete the round of this pair of a client journal; whether its object is linked then.

        True for the unique id of a slot that is being made vacant, and for a pair that cannot be
        (then the object may be linked). Called pinned.
        """
        tables = self.tables
        ticket = reference & FROZEN != 0
        if not tables.is_named(link_address) or (
            not ticket and not self.index.heap.plausible(reference)
        ):
            return True
        while True:
            try:
                tables.agree()
                if link_address & ENTRY:
                    return tables.advance(link_address & PLACE_BITS, 0, 0) == reference
                return bool(self.other.resolve(reference, link_address, ticket)) or ticket
            except NodeFailed as error:
                if not tables.outlive(error.node):
                    return ticket  # the link went with its nodes

    # ---- after the loss of a node -------------------------------------------------------------

    def recall(self, node: int) -> int:
        """The result of the operation that met a lost node: DONE or AGAIN.

        FAILED: more nodes are lost than the store survives, and no client can tell.
        """
        while self.tables.outlive(node):
            try:
                return self._outcome()
            except NodeFailed as error:
                node = error.node
        return FAILED

    def _outcome(self) -> int:
        done = self.round
        if done.doing == IDLE:
            return AGAIN
        word = self.endpoint.load(self.tables.primary(done.link_address & PLACE_BITS))
        if done.doing == INSERTING:
            if word & ~FROZEN == done.new or self.logged.death(done.new & OBJECT_MASK):
                return DONE
            return AGAIN
        if word == done.old:
            # If no replica of the slot was on the lost node, its leader has left the round as it
            # was: backups may have proposals, which any client may complete.
            self.slot.go_to(done.link_address)
            self.slot.help(done.old)
            word = self.slot.read()
        if word in (done.old, done.old | FROZEN):
            return AGAIN
        if word != done.new and (done.doing != UPDATING or not self.is_blind()):
            return DONE if self.logged.death(done.old & OBJECT_MASK) == done.new else AGAIN
        return DONE
