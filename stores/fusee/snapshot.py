"""SNAPSHOT: changing a slot that has replicas (FUSEE section 4.3, algorithms 1, 2 and 4).

A round changes a slot from one value of its primary, `old`, to another. Each phase is one round
trip; (1) is the caller's, who has read the primary and written the object.

    (2) CAS all backups from `old` to the own value. What they then have, the proposals, is fixed:
        each backup is changed by one participant, since `old` does not come again
        Algorithm 2 picks the winner from the proposals: rule 1, all are one's own; rule 2, the
        value that most backups have; rule 3, the smallest. Unless rule 1 holds, look first whether
        the primary still has `old`; if not, what we saw may be of a later round. A winner by rules
        2 and 3 changes the other backups to its own value
    (3) write the new value into the log entry of the old object (log.py)
    (4) CAS the primary. This decides
    losers wait until the primary changes

An update that loses has taken effect just before the winner, and returns. A delete that loses
begins again: it might have lost to an update, which found the key.

Completing a round. All proposals of an update or a delete are legal, so a client that has waited
for PATIENCE completes the round on the winner's behalf, `_help`: gives backups that still have
`old` one of the proposals, looks whether the primary still has `old`, and goes on as the winner. So
nobody waits for a client that is dead or stopped.

A round that fills a vacant slot is different: its winner must make sure that no other slot gets the
same key (the paper does not; trap F10), and only itself knows that it has.
    (2) together with the CAS, read both of the key's buckets on the first backup. Of two inserts of
        one key, at least one finds the other there
        whoever has the first backup wins the round; others begin again, and now and then void it
        it looks at the primary, too, where other backups have another value: until the primary
        has changed, that is of its own round
        another slot with the key has been decided: withdraw. Another is under way: that at the
        lower address goes first, the other withdraws or, met again and again, is evicted
    (3) change the other backups that have another value; write INSERTED into the own object's log
        entry
    (4) CAS the primary
To withdraw, or to evict a client that stands in the way, is to *void* the round, which anybody may:
CAS the primary from `old` to a number that was never used, and then every backup, the first backup
last, to that number, too. Only its author ever writes that number, to each backup once; if it dies,
another number is used. As the first backup is the last to be cleared, whoever wins the next round
meets nothing from before on the others, and nobody acts upon a round's being void before that can
be read from any backup.

Round trips without conflict: update and delete 4, insert 4, of which the first is the caller's.

A kill leaves behind: every participant has in hand, under the slot's name, what it proposes,
or the old object that it means to free, or the number that voids a round. `resolve` brings the
round to its end on behalf of whoever is gone, and says whether the object is linked.

When nodes are lost (algorithms 3 and 4): a participant that meets NodeFailed does nothing more in
its round, waits for the new view (shm/replicas/view.py), and finds out how the round ended by the
primary and the log entries: `_outcome`. What the leader does with the replicas that are left is in
reconcile.py.

With one replica left, there is no backup; then slots are changed as in `race`, but for the mark in
the log entry of what is replaced.

`sequential` (FUSEE-CR): backups are CASed one after another, each in a round trip of its own, and
the first one's value wins.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.check import SurveyedTables
from limpet.stores.fusee.links import OLD
from limpet.stores.fusee.marks import (
    BIRTH,
    DEATH,
    DELETING,
    FAILED,
    GONE,
    IDLE,
    INSERTED,
    INSERTING,
    REPLICAS_ROW,
    UPDATING,
)
from limpet.stores.fusee.tables import identity
from limpet.stores.race.old.index import is_vacant, is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.race.old.store import is_frozen
from limpet.stores.race.old.table import Race
from limpet.stores.status import AGAIN, DONE, FULL

PATIENCE: Final = 8
"""How often a loser looks at the primary before it helps; how often an insert gives way."""


class Snapshot(SurveyedTables):
    """Rounds on the slots of a replicated index."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.sequential = False
        self.seen = array("Q", bytes(8 * REPLICAS_ROW))
        self.doing = IDLE
        self.at_home = 0
        self.old = 0
        self.new = 0

    # ---- algorithm 1 ------------------------------------------------------------------------

    def _replace(self, slot: int, word: int, desired: int) -> int:
        if word & FROZEN:
            return FULL
        if not self.backups:
            self._mark_alone(word)
            return Race._replace(self, slot, word, desired)
        self._begin(UPDATING, slot, word, desired)
        self.client.aim(0, self.at_home)
        old = self.client.hold(word & OBJECT_MASK, self.at_home | OLD)
        if self._round(slot, word, desired):
            self.client.keep(0)
        else:
            self.client.release(0)
            if self._is_frozen_at(slot, word):
                self.client.keep(old)
                return AGAIN
        self.client.release(old)
        return DONE

    def _is_frozen_at(self, slot: int, word: int) -> bool:
        """Whether the round of this word, which we have lost, has frozen the slot."""
        return self.endpoint.load(slot) == word | FROZEN

    def _remove(self, slot: int, word: int) -> int:
        if word & FROZEN:
            return FULL
        if not self.backups:
            self._mark_alone(word)
            return Race._remove(self, slot, word)
        ticket = self._ticket()
        self._begin(DELETING, slot, word, ticket)
        old = self.client.hold(word & OBJECT_MASK, self.at_home | OLD)
        won = self._round(slot, word, ticket)
        if not won and self._is_frozen_at(slot, word):
            self.client.keep(old)
        else:
            self.client.release(old)
        return DONE if won else AGAIN

    def _mark_alone(self, word: int) -> None:
        """Note that the object in a slot is being replaced that has no backups any more.

        Its author may have lost a node as it was about to link it, and not know yet that it is.
        """
        if self.replicas > 1:
            self.logged.mark(word & OBJECT_MASK, DEATH, GONE)
            self.endpoint.wait()

    def _begin(self, doing: int, slot: int, old: int, new: int) -> None:
        """Remember what we are about to do, for `_outcome`."""
        self.doing = doing
        self.at_home = self._home(slot)
        self.old = old
        self.new = new

    def _round(self, slot: int, old: int, new: int) -> bool:
        """Take part in the round of `old` until it has ended; whether `new` has won."""
        if not self._propose(slot, old, new):
            self.endpoint.wait()
            still = self.endpoint.load(slot) == old
            self.endpoint.wait()
            if not still:
                return self._has_won(old, new)
            if self._winner() != new:
                self._await(slot, old)
                return False
            self._spread(slot, new)
        # CRASH(won): all backups have the new value; whoever comes by completes the round.
        self.endpoint.wait()
        self._mark_end(old, new)
        # LINEARIZES: update, delete
        was = self.endpoint.cas(slot, old, new)
        # CRASH(replaced): the old object is in the hand and no longer linked.
        self.endpoint.wait()
        return was in (old, new) or self._has_won(old, new)

    def _mark_end(self, old: int, winner: int) -> None:
        """Write into the log entry of the old object how its round ends; unless it stays linked."""
        if not is_frozen(winner):
            self.logged.mark(old & OBJECT_MASK, DEATH, winner)
            self.endpoint.wait()

    def _has_won(self, old: int, new: int) -> bool:
        """How a round has ended that others have completed, as the old object's log entry says."""
        won: bool = self.logged.death(old & OBJECT_MASK) == new
        self.endpoint.wait()
        return won

    def _propose(self, slot: int, old: int, new: int) -> bool:
        """CAS all backups; `seen` is then what each has. Whether that is our value (rule 1)."""
        ours = True
        for k in range(1, self.backups + 1):
            was = self.endpoint.cas(self._backup(slot, k), old, new)
            # CRASH(proposed): some backups have the new value.
            self.seen[k] = new if was == old else was
            if self.seen[k] != new:
                ours = False
            if self.sequential and not ours and k == 1:
                return False
            if self.sequential and k < self.backups:
                self.endpoint.wait()
        return ours

    def _spread(self, slot: int, winner: int) -> None:
        """Change the backups that were seen to have another proposal."""
        for k in range(1, self.backups + 1):
            if self.seen[k] != winner:
                self.endpoint.cas(self._backup(slot, k), self.seen[k], winner)

    # ---- algorithm 2 ------------------------------------------------------------------------

    def _winner(self) -> int:
        """Which of the proposals seen wins: by rule 1 and 2, the most frequent; by 3, the least."""
        if self.sequential:
            return self.seen[1]
        least = self.seen[1]
        for k in range(1, self.backups + 1):
            count = 0
            for other in range(1, self.backups + 1):
                if self.seen[other] == self.seen[k]:
                    count += 1
            if 2 * count > self.backups:
                return self.seen[k]
            least = min(least, self.seen[k])
        return least

    # ---- waiting and helping ----------------------------------------------------------------

    def _await(self, slot: int, old: int) -> None:
        """Wait until the round of `old` has ended."""
        attempt = 0
        while self.endpoint.load(slot) == old:
            self.endpoint.wait()
            attempt += 1
            if attempt > PATIENCE:
                self._help(slot, old)
            else:
                self.endpoint.pause(attempt)

    def _help(self, slot: int, old: int) -> None:
        """Complete the round of an object, if there is one; the object is in hand."""
        # With `sequential`, the first backup decides; until it has, there is nothing to complete.
        if self._look_at_backups(slot, old) and not (self.sequential and self.seen[1] == old):
            self._fill(slot, old)
            still = self.endpoint.load(slot) == old
            self.endpoint.wait()
            if still:
                # ORDER: the primary after the backups: what they had was of this round.
                winner = self._winner()
                self._spread(slot, winner)
                self.endpoint.wait()
                self._mark_end(old, winner)
                # CRASH(helped): the next one does it again.
                self.endpoint.cas(slot, old, winner)
                self.endpoint.wait()

    def _fill(self, slot: int, old: int) -> None:
        """Give backups that were seen to have the old value a proposal that another one has."""
        proposal = 0
        for k in range(1, self.backups + 1):
            if self.seen[k] != old:
                proposal = self.seen[k]
        for k in range(1, self.backups + 1):
            if self.seen[k] == old:
                was = self.endpoint.cas(self._backup(slot, k), old, proposal)
                self.seen[k] = proposal if was == old else was
        self.endpoint.wait()

    def _look_at_backups(self, slot: int, value: int) -> bool:
        """Read all backups into `seen`; whether one has something else than `value`."""
        differs = False
        for k in range(1, self.backups + 1):
            self.seen[k] = self.endpoint.load(self._backup(slot, k))
            if self.seen[k] != value:
                differs = True
        self.endpoint.wait()
        return differs

    # ---- filling a vacant slot ----------------------------------------------------------------

    def _insert(self, key: bytes, desired: int, attempt: int) -> int:
        if not self.backups:
            return Race._insert(self, key, desired, attempt)
        index = self._room()
        if index < 0:
            return FULL
        slot = self._address(index)
        vacant = self.slots[index]
        self._begin(INSERTING, slot, vacant, desired)
        self.client.aim(0, self.at_home)
        ours = self._propose(slot, vacant, desired)
        # ORDER: the buckets after our CAS of the same backup; so one of two rivals sees the other.
        self._read_backup(1)
        # ORDER: the primary after the backups: what they had was of this round. The first backup
        # does not say so: it is the last that is cleared, and others may have the next round's.
        still = ours or self.endpoint.load(slot) == vacant
        self.endpoint.wait()
        if self.slots[32 + index] != desired or not still:
            if attempt % PATIENCE == PATIENCE - 1:
                self._void(slot, vacant)  # whoever fills it may be dead, or stand still
            return self._withdraw(desired, False)
        if self._rival_found(key, index, attempt):
            return self._withdraw(desired, True)
        # CRASH(inserting): nobody completes it; it is made void.
        self._spread(slot, desired)
        self.logged.mark(desired & OBJECT_MASK, BIRTH, INSERTED)
        self.endpoint.wait()
        # LINEARIZES: insert
        won = self.endpoint.cas(slot, vacant, desired) == vacant
        self.endpoint.wait()
        if not won:
            return self._withdraw(desired, True)
        self.client.keep(0)
        return DONE

    def _read_backup(self, row: int) -> None:
        """Read both combined buckets on the first backup into a row of `slots`."""
        self.endpoint.read_words(self._backup(self.at[0], 1), self.slots, 16, 32 * row)
        self.endpoint.read_words(self._backup(self.at[1], 1), self.slots, 16, 32 * row + 16)

    def _withdraw(self, desired: int, hurry: bool) -> int:
        """Give up filling a slot; what was proposed is nowhere afterwards, unless it is linked."""
        if self.resolve(desired & OBJECT_MASK, self.at_home, hurry):
            self.client.keep(0)
            return DONE
        self.client.aim(0, 0)
        return AGAIN

    def _rival_found(self, key: bytes, own: int, attempt: int) -> bool:
        """Whether the first backup has the key in another slot than `own` and we must give way."""
        fingerprint = self.hash & 0xFF
        for index in range(32):
            word = self.slots[32 + index]
            if not index & 7 or index == own:
                continue
            slot = self._address(index)
            if is_vacant(word):
                # Since the primary was read, the key may have come there, and be on its way out.
                if word != self.slots[index] and self._key_in(slot, key):
                    return True
            elif word >> 56 == fingerprint and is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                self.endpoint.wait()
                if self.objects.key_is(key) and self._yield_to(slot, word, own, attempt):
                    return True
        return False

    def _key_in(self, slot: int, key: bytes) -> bool:
        """Whether the primary of the slot has the key."""
        word = self.endpoint.load(slot)
        self.endpoint.wait()
        if not is_valid(word) or word >> 56 != self.hash & 0xFF:
            return False
        self.objects.load(word & OBJECT_MASK)
        self.endpoint.wait()
        return self.objects.key_is(key)

    def _yield_to(self, slot: int, word: int, own: int, attempt: int) -> bool:
        """Whether we give way to another slot with our key; if not, its round is void."""
        theirs = self.endpoint.load(slot)
        self.endpoint.wait()
        if is_valid(theirs) or (slot < self._address(own) and attempt < PATIENCE):
            return True
        # CRASH(evicting): the rival is neither helped nor hindered by half of it.
        return self.resolve(word & OBJECT_MASK, self._home(slot), True)

    # ---- bringing a round to its end ----------------------------------------------------------

    def resolve(self, reference: int, home: int, hurry: bool) -> bool:
        """Wait until this pair of a hand is decided; whether the slot's primary has the object.

        Decided is a proposal when no backup has it or the primary has; an old object, or a number
        that voids a round, when the primary has it no longer or all backups have it, too. With
        `hurry`, do not wait for others before completing the round, or making it void.
        """
        slot = self._go_to(home)
        attempt = 0
        while True:
            word = self.endpoint.load(slot)
            self._look_at_backups(slot, word)
            linked = identity(word) == reference
            others = 0
            same = 0
            for k in range(1, self.backups + 1):
                if identity(self.seen[k]) == reference:
                    same += 1
                if self.seen[k] != word:
                    others += 1
            if home & OLD or reference & FROZEN:
                if not linked or not others:
                    return linked
            elif linked or not same:
                return linked
            attempt += 1
            if not hurry and attempt <= PATIENCE:
                self.endpoint.pause(attempt)
            elif is_vacant(word):
                self._void(slot, word)
            elif is_frozen(word):
                self._even_out(slot, word)
            else:
                self._help_out(slot, word)

    def _even_out(self, slot: int, word: int) -> None:
        """Give all backups of a frozen slot what the primary has, for good."""
        for k in range(1, self.backups + 1):
            backup = self._backup(slot, k)
            there = self.endpoint.load(backup)
            while there != word:
                was = self.endpoint.cas(backup, there, word)
                there = word if was == there else was
        self.endpoint.wait()

    def _help_out(self, slot: int, word: int) -> None:
        """`_help`, with the old object in hand meanwhile."""
        held = self.client.hold(word & OBJECT_MASK, self._home(slot) | OLD)
        self._help(slot, word)
        linked = identity(self.endpoint.load(slot)) == word & OBJECT_MASK
        self.endpoint.wait()
        if linked:
            self.client.keep(held)
        else:
            self.client.release(held)

    def _void(self, slot: int, vacant: int) -> None:
        """Make the round that fills a slot void."""
        ticket = self._ticket()
        held = self.client.hold(ticket, self._home(slot))
        lost = self.endpoint.cas(slot, vacant, ticket) != vacant
        self.endpoint.wait()
        if not lost:
            for k in range(self.backups, 0, -1):
                # CRASH(voided): the first backup still has the proposal; nobody counts on it.
                self._clear(slot, k, ticket)
        self.client.keep(held)

    def _clear(self, slot: int, k: int, ticket: int) -> None:
        """Give a backup of a void round its number, once."""
        backup = self._backup(slot, k)
        done = False
        while not done:
            word = self.endpoint.load(backup)
            self.endpoint.wait()
            current = self.endpoint.load(slot)
            self.endpoint.wait()
            # ORDER: the primary after the backup: what that had was of a round before this number.
            done = word == ticket or current != ticket
            if not done:
                done = self.endpoint.cas(backup, word, ticket) == word
                self.endpoint.wait()

    # ---- after the loss of a node -------------------------------------------------------------

    def _recall(self, node: int) -> int:
        """How the operation has ended that met a lost node: DONE or AGAIN.

        FAILED: more is lost than the store survives, and nobody knows.
        """
        while self._outlive(node):
            try:
                return self._outcome()
            except NodeFailed as error:
                node = error.node
        return FAILED

    def _outcome(self) -> int:
        if self.doing == IDLE:
            return AGAIN
        word = self.endpoint.load(self._go_to(self.at_home))
        if self.doing == INSERTING:
            if word & ~FROZEN == self.new or self.logged.death(self.new & OBJECT_MASK):
                return DONE
            return AGAIN
        if word in (self.old, self.old | FROZEN):
            return AGAIN
        if self.doing == DELETING and word != self.new:
            return DONE if self.logged.death(self.old & OBJECT_MASK) == self.new else AGAIN
        return DONE
