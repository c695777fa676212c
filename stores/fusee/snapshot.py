"""SNAPSHOT: a slot that has replicas, READ and WRITE (FUSEE section 4.3, algorithms 1, 2 and 4).

READ reads the primary. WRITE is a round: it changes a slot from one value of its primary, `old`, to
another, `new`. Each phase is one round trip, and written as verbs.pyx says: posted, waited for,
and looked at. In phase (1) the caller has read the primary and written the object.

    (2) CAS all backups from `old` to the own value. Their values then, the proposals, are fixed:
        each backup is changed by one participant, since `old` does not come again
        Algorithm 2, `evaluate_rules`, picks the winner from the proposals: rule 1, all are one's
        own; rule 2, the value that most backups have; rule 3, the smallest. Unless rule 1 holds,
        look first whether the primary still has `old`; if not (FINISH), the values that we saw may
        be of a later round. A winner by rules 2 and 3 changes the other backups to its own value
    (3) write the new value into the log entry of the old object (log.py)
    (4) CAS the primary. This decides
    a client that loses (LOSE) waits until the primary changes

An update that loses has taken effect just before the winner, and returns; but if clients swap, the
winner may have been made because of the old value, and the update begins again. So a client that
loses looks, in the phase after it has seen the proposals, or later, whether clients swap: those
that do have said so before they propose anything (tables.py). A delete that loses begins again: it
might have lost to an update, which found the key.

Completing a round. All proposals of an update or a delete are legal, so a client that has waited
for PATIENCE completes the round on the winner's behalf, `help`: gives backups that still have
`old` one of the proposals, looks whether the primary still has `old`, and goes on as the winner. So
no client waits for a dead or stopped client.

A round that fills a vacant slot is different: its winner must make sure that no other slot gets the
same key, and only the winner knows when it has done so (slots.py). So no other client completes it;
any client may make it *void*: CAS the primary from `old` to a number that was never used, and then
every backup, the first backup last, to that number, too. Only the client that took the number ever
writes it, to each backup once; if it dies, another number is used. As the first backup is cleared
last, the winner of the next round meets no old values on the others, and no client takes a round
for void before any backup shows it.

A kill leaves behind: every participant has in the client journal, under the slot's name, its
proposal, or the old object that it will free, or the number that voids a round. `resolve` completes
the round on behalf of a dead client, and returns whether the object is linked.

When nodes are lost (algorithms 3 and 4): a participant that meets NodeFailed changes nothing more
in its round, waits for the new view (shm/replicas/view.py), and finds out how the round ended
(slots.py). The leader's steps are in restoring.py.

`sequential` (FUSEE-CR): backups are CASed one after another, each in a round trip of its own, and
the first one's value wins.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.fusee.links import (
    DEATH,
    FINISH,
    LOSE,
    OLD,
    PLACE_BITS,
    REPLICAS_ROW,
    RULE_1,
    RULE_2,
    RULE_3,
)
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.tables import ReplicatedTables, identity
from limpet.stores.race.index import is_frozen, is_vacant
from limpet.stores.race.layout import FROZEN, OBJECT_MASK

PATIENCE: Final = 8
"""Looks of a client that has lost at the primary before it helps."""


class ReplicatedSlot:
    """One slot at a time: the one that was selected last."""

    def __init__(
        self, tables: ReplicatedTables, logged: LoggedObjects, sequential: bool = False
    ) -> None:
        self.tables = tables
        self.logged = logged
        self.sequential = sequential
        self.client = self.tables.client
        self.endpoint = self.tables.endpoint
        self.address = 0
        """Address of the primary."""
        self.head = 0
        """The node of replica 0 of its subtable."""
        self.backups = 0
        """The number of backups."""
        self.link_address = 0
        """Its name in the client journal."""
        self.current = 0
        """The word of the primary when it was last looked at."""
        self.seen = array("Q", bytes(8 * REPLICAS_ROW))
        """The value of each backup, from place 1 on: `v_list` of the algorithms. Between `propose`
        and `proposed`, from place `posted` on, the tickets of the results."""
        self.posted = 0

    def select(self, address: int, head: int) -> None:
        """Select the slot with this address, in a subtable with its replica 0 on node `head`."""
        self.address = address
        self.head = head
        self.backups = self.tables.backups_of(head)
        self.link_address = self.tables.link_address(address, head)

    def go_to(self, link_address: int) -> None:
        """Select the slot that has this name."""
        place = link_address & PLACE_BITS
        self.select(self.tables.primary(place), place >> NODE_SHIFT & 0xFF)

    def backup(self, k: int) -> int:
        """Address of the slot's replica on backup `k`, from 1 on."""
        return self.tables.backup(self.address, self.head, k)

    # ---- algorithm 1 ------------------------------------------------------------------------

    def read(self) -> int:
        """READ (line 2): the value of the primary; a phase."""
        self.current = self.read_word(self.address)
        return self.current

    def read_word(self, address: int) -> int:
        """The word there; a phase."""
        ticket = self.endpoint.post_load(address)
        self.endpoint.wait()
        return self.endpoint.result(ticket)

    def write(self, old: int, new: int) -> bool:
        """WRITE: take part in the round of `old` until it has ended; whether `new` has won."""
        return self.conclude(self.cas_backups(old, new), old, new)  # lines 7 to 9

    def conclude(self, ours: bool, old: int, new: int) -> bool:
        """The rest of WRITE, after the CAS of all backups; `seen` has their values then. `ours`:
        all are `new`."""
        win = self.evaluate_rules(ours, old, new)  # line 10
        if win == FINISH:
            return self._has_won(old, new)
        if win == LOSE:  # lines 16 to 21
            self._await(old)
            return False
        if win != RULE_1:
            self.change_backups(new)  # line 14
            self.endpoint.wait()
        # CRASH(won): all backups have the new value; the next client here completes the round.
        self._mark_end(old, new)
        # LINEARIZES: update, delete
        ticket = self.endpoint.post_cas(self.address, old, new)  # lines 12 and 15
        # CRASH(replaced): the old object is in the client journal and no longer linked.
        self.endpoint.wait()
        self.current = self.endpoint.result(ticket)
        return self.current in (old, new) or self._has_won(old, new)

    def cas_backups(self, old: int, new: int) -> bool:
        """CAS all backups; `seen` has their values then. Whether all are our value (rule 1)."""
        self.propose(old, new)
        if self.posted <= self.backups:
            self.endpoint.wait()
        return self.proposed(old, new)

    def propose(self, old: int, new: int) -> None:
        """Post the CAS of all backups: after `wait`, `proposed`.

        With `sequential`, each but the last is a phase, and all end with the first one that loses.
        """
        k = 1
        while self.sequential and k < self.backups:
            ticket = self.endpoint.post_cas(self.backup(k), old, new)
            # CRASH(proposed): some backups have the new value.
            self.endpoint.wait()
            was = self.endpoint.result(ticket)
            self.seen[k] = new if was == old else was
            if k == 1 and self.seen[1] != new:
                k = self.backups
            k += 1
        self.posted = k
        while k <= self.backups:
            self.seen[k] = self.endpoint.post_cas(self.backup(k), old, new)
            k += 1

    def proposed(self, old: int, new: int) -> bool:
        """The phase of `propose` has ended: `seen` has the values of the backups. Whether all are
        our value (rule 1)."""
        for k in range(self.posted, self.backups + 1):
            was = self.endpoint.result(self.seen[k])
            self.seen[k] = new if was == old else was
        ours = True
        for k in range(1, self.backups + 1):
            ours = ours and self.seen[k] == new
        return ours

    def recall(self, seen: Any, at: int) -> None:
        """Take these words, from place `at` + 1 on, as the values of the backups that were seen."""
        for k in range(1, self.backups + 1):
            self.seen[k] = seen[at + k]

    def change_backups(self, winner: int) -> None:
        """CAS the backups that were seen to have another proposal; not waited for."""
        for k in range(1, self.backups + 1):
            if self.seen[k] != winner:
                self.endpoint.post_cas(self.backup(k), self.seen[k], winner)

    def _mark_end(self, old: int, winner: int) -> None:
        """Write into the log entry of the old object how its round ends; unless it stays linked."""
        if not is_frozen(winner):
            self.logged.mark(old & OBJECT_MASK, DEATH, winner)
            self.endpoint.wait()

    def _has_won(self, old: int, new: int) -> bool:
        """Whether we have won a round that others have completed, by the old object's log entry."""
        ticket = self.tables.post_swaps()
        won: bool = self.logged.death(old & OBJECT_MASK) == new
        self.tables.saw_swaps(ticket)
        return won

    # ---- algorithm 2 ------------------------------------------------------------------------

    def evaluate_rules(self, ours: bool, old: int, new: int) -> int:
        """RULE_1, RULE_2 or RULE_3: `new` wins by that; LOSE; FINISH: the round has ended.

        `ours`: all backups were seen to have `new`.
        """
        if ours:
            return RULE_1
        # ORDER: the primary after the backups, in a phase of its own, as they are on other nodes.
        if self.read() != old:  # line 12, before the other rules
            return FINISH
        k = self._majority()
        if k:
            return RULE_2 if self.seen[k] == new else LOSE
        return RULE_3 if self._least() == new else LOSE

    def _winner(self) -> int:
        """The winning proposal of those seen, by rules 1 and 2, or 3."""
        k = self._majority()
        return self.seen[k] if k else self._least()

    def _majority(self) -> int:
        """A backup with the value that most backups have; 0: there is none."""
        if self.sequential:
            return 1
        for k in range(1, self.backups + 1):
            count = 0
            for other in range(1, self.backups + 1):
                if self.seen[other] == self.seen[k]:
                    count += 1
            if 2 * count > self.backups:
                return k
        return 0

    def _least(self) -> int:
        """The smallest of the proposals seen."""
        least = self.seen[1]
        for k in range(1, self.backups + 1):
            least = min(least, self.seen[k])
        return least

    # ---- waiting and helping ----------------------------------------------------------------

    def _await(self, old: int) -> None:
        """Wait until the round of `old` has ended."""
        attempt = 0
        ticket = self.tables.post_swaps()
        word = self.read()
        self.tables.saw_swaps(ticket)
        while word == old:
            attempt += 1
            if attempt > PATIENCE:
                self.help(old)
            else:
                self.endpoint.pause(attempt)
            word = self.read()

    def help(self, old: int) -> None:
        """Complete the round of an object, if there is one; the object is in the client journal."""
        # With `sequential`, the first backup decides; until it has, there is nothing to complete.
        if self._look_at_backups(old) and not (self.sequential and self.seen[1] == old):
            self._fill(old)
            # ORDER: the primary after the backups, so that their values were of this round.
            if self.read() == old:
                winner = self._winner()
                self.change_backups(winner)
                self.endpoint.wait()
                self._mark_end(old, winner)
                # CRASH(helped): the next client does it again.
                self.endpoint.post_cas(self.address, old, winner)
                self.endpoint.wait()

    def _fill(self, old: int) -> None:
        """Give backups that had the old value a proposal of another backup."""
        proposal = 0
        filled = 0
        for k in range(1, self.backups + 1):
            if self.seen[k] != old:
                proposal = self.seen[k]
        for k in range(1, self.backups + 1):
            if self.seen[k] == old:
                self.seen[k] = self.endpoint.post_cas(self.backup(k), old, proposal)
                filled |= 1 << k
        self.endpoint.wait()
        for k in range(1, self.backups + 1):
            if filled >> k & 1:
                was = self.endpoint.result(self.seen[k])
                self.seen[k] = proposal if was == old else was

    def _look_at_backups(self, value: int) -> bool:
        """Read all backups into `seen`; whether one has another value than `value`. A phase."""
        for k in range(1, self.backups + 1):
            self.seen[k] = self.endpoint.post_load(self.backup(k))
        self.endpoint.wait()
        differs = False
        for k in range(1, self.backups + 1):
            self.seen[k] = self.endpoint.result(self.seen[k])
            if self.seen[k] != value:
                differs = True
        return differs

    # ---- completing a round ---------------------------------------------------------------------

    def resolve(self, reference: int, link_address: int, hurry: bool) -> bool:
        """Wait until this pair of a client journal is decided; whether the slot's primary has the
        object.

        A proposal is decided when no backup has it, or the primary has it. An old object, or a
        number that voids a round, is decided when the primary does not have it any more, or all
        backups have it, too. With `hurry`, do not wait for others before completing the round, or
        making it void.
        """
        self.go_to(link_address)
        attempt = 0
        while True:
            # The primary and the backups in any order: what is decided stays so, and no proposal
            # that has gone from all backups comes back.
            ticket = self.endpoint.post_load(self.address)
            self._look_at_backups(0)
            word = self.endpoint.result(ticket)
            linked = identity(word) == reference
            others = 0
            same = 0
            for k in range(1, self.backups + 1):
                if identity(self.seen[k]) == reference:
                    same += 1
                if self.seen[k] != word:
                    others += 1
            if link_address & OLD or reference & FROZEN:
                if not linked or not others:
                    return linked
            elif linked or not same:
                return linked
            attempt += 1
            if not hurry and attempt <= PATIENCE:
                self.endpoint.pause(attempt)
            elif is_vacant(word):
                self.void(word)
            elif is_frozen(word):
                self.even_out(word)
            else:
                self._help_out(word)

    def even_out(self, word: int) -> None:
        """Give all backups of a frozen slot the primary's value, for good."""
        for k in range(1, self.backups + 1):
            backup = self.backup(k)
            there = self.endpoint.load(backup)
            while there != word:
                was = self.endpoint.cas(backup, there, word)
                there = word if was == there else was
        self.endpoint.wait()

    def _help_out(self, word: int) -> None:
        """`help`, with the old object in the client journal meanwhile."""
        held = self.client.log(word & OBJECT_MASK, self.link_address | OLD)
        self.help(word)
        if identity(self.read()) == word & OBJECT_MASK:
            self.client.drop(held)
        else:
            self.client.release(held)

    def void(self, vacant: int) -> None:
        """Make the round that fills a slot void."""
        ticket = self.tables.ticket()
        held = self.client.log(ticket, self.link_address)
        posted = self.endpoint.post_cas(self.address, vacant, ticket)
        self.endpoint.wait()
        if self.endpoint.result(posted) == vacant:
            for k in range(self.backups, 0, -1):
                # CRASH(voided): the first backup still has the proposal; no client relies on it.
                self._clear(k, ticket)
        self.client.drop(held)

    def _clear(self, k: int, ticket: int) -> None:
        """Give a backup of a void round its number, once."""
        backup = self.backup(k)
        done = False
        while not done:
            word = self.read_word(backup)
            current = self.read()
            # ORDER: the primary after the backup, so that the backup's value was of an earlier
            # round.
            done = word == ticket or current != ticket
            if not done:
                posted = self.endpoint.post_cas(backup, word, ticket)
                self.endpoint.wait()
                done = self.endpoint.result(posted) == word

    def is_frozen_at(self, word: int) -> bool:
        """Whether the round of this word, which we have lost, has frozen the slot: a look at it
        since has found that."""
        return self.current == word | FROZEN
