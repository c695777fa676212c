"""Changes of slots, by one CAS each: RACE's update and delete, and an insert of our own.

Update and delete are the paper's (Zuo et al., ATC '21; FUSEE section 4.2): a client that has found
the slot changes it by a CAS, and starts again if it fails.

If every change of a store is blind (`fusee` before its first compare-and-set), an update whose CAS
fails because the pair was replaced or deleted took effect just before that change, as SNAPSHOT's
loser does (FUSEE section 4.3): it is done, and its object is freed. The client has been
pinned since it read the slot, so the word stood for the same object until then. In other stores the
change may have been made because of the value that was there. An update also starts again if the
slot is frozen, as its pair is still there; and in a durable pool, where a power cut may undo the
other change, which its client persists later.

The paper's insert writes the slot and then looks for a duplicate, removing the later of two; a
reader can have seen the later one already, which is not linearizable. Our insert is decided by one
CAS:

    1. CAS an empty slot to the object, tentative; read both combined buckets again (one round trip)
    2. a valid slot holds the key: withdraw. Another tentative slot holds it: the one at the lower
       address goes first, the other withdraws, or, met again and again, is emptied by a CAS to 0
    3. CAS the own slot to not tentative

Of two inserts of one key, each reads the slots after its own step 1, so at least one sees the
other. It goes on to step 3 only if it saw the other's slot empty again, cleared by the other insert
or by this one, and then the other's step 3 fails. A dead or stopped client's tentative slot is
emptied in the same way.

A writer of slots has three methods, `replace`, `insert` and `remove`. Each returns DONE, AGAIN (the
operation starts again), or FULL: the subtable must be split. `change_all` does the same for all
keys of a batch (batch.py), a phase at a time. Other writers are transactional
(stores/transactions/hash_keys.py) and replicated (stores/fusee/slots.py).

In a durable pool, a power cut leaves a slot as it was before some CAS or after it; an undecided
insert's word means nothing then, and is cleared (check.py).

A kill leaves behind: the client journal (client.py) names the new object and its slot, the old
object and its slot. Recovery frees the new object if the deciding CAS did not happen, else the old
one: that which is not validly linked.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.fabric import lowest_bit
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import REFERENCE_MASK, TENTATIVE
from limpet.shm.errors import LimpetError, NodeFailed
from limpet.stores.core.status import AGAIN, DONE, FULL, LEFT, MADE, READY
from limpet.stores.race.batch import Batch, BatchSearch
from limpet.stores.race.index import Index, Place
from limpet.stores.race.layout import FROZEN, SLOTS

PATIENCE: Final = 8
"""How often an insert gives way to another insert of the same key before it empties its slot."""


class Slots:
    """Changes the slots of an index without replicas."""

    def __init__(self, index: Index, client: Any) -> None:
        self.index = index
        self.client = client
        self.endpoint = index.endpoint
        self.objects = index.objects

    def replace(self, place: Place, slot: int, desired: int) -> int:
        """Change the slot that was found, with `place.word`, to `desired`, which is at place 0 of
        the client journal."""
        word = place.word
        if word & FROZEN:
            return FULL
        self.client.retarget(0, slot)
        old = self.client.log(word & REFERENCE_MASK, slot)
        if self.endpoint.durable:
            # ORDER: the new object persists before a slot links to it.
            self.endpoint.persist()
        # LINEARIZES: update
        ticket = self.endpoint.post_cas(slot, word, desired)
        # CRASH(updated): the old object is in the client journal and no longer linked.
        self.endpoint.wait()
        found = self.endpoint.result(ticket)
        if found == word:
            self.client.exchange(0, old)
            return DONE
        if self.endpoint.durable:
            return AGAIN
        # The client that has changed the slot frees the old object. Nothing links to the new one,
        # so the end of the operation frees it without a look.
        self.client.drop(old)
        self.client.retarget(0, 0)
        return DONE if found != word | FROZEN and self.is_blind() else AGAIN

    def is_blind(self) -> bool:
        """Whether no change until now has depended on the value that it replaced."""
        return False

    def link_of(self, slot: int, head: int) -> int:
        """The name of a slot in the client journal. `head`: as `Batch.heads`."""
        return slot

    def old_link_of(self, link: int) -> int:
        """The name of the slot for the object that is replaced there."""
        return link

    def begin_changes(self) -> None:
        """CASes of slots follow that change values."""

    def end_changes(self) -> None:
        """They are done."""

    def takes_batches(self, place: Place) -> bool:
        """Whether a slot of this key may be changed in a batch."""
        return True

    def change_all(self, search: BatchSearch, batch: Batch) -> None:
        """Do for the READY rows of a batch what `replace` and `insert` do for one slot. The new
        objects are posted, all pairs are in the client journal. Those that succeed are MADE."""
        endpoint = self.endpoint
        if endpoint.durable:
            # ORDER: the new objects are written, and persist, before a slot links to them.
            endpoint.wait()
            endpoint.persist()
        self.begin_changes()
        for row in range(batch.count):
            if batch.states[row] == READY:
                self._post_change(search, batch, row)
        self.end_phase(batch)
        self.end_changes()
        inserts = 0
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            if endpoint.result(batch.tickets[row]) != batch.words[row]:
                batch.states[row] = LEFT
            elif batch.updates[row]:
                batch.states[row] = MADE
            else:
                place = search.places[row]
                self.index.row_arrived(place, row)
                inserts += 1
        if inserts:
            self._decide_all(search, batch)
        if not endpoint.durable:
            self._free_replaced(batch)

    def _post_change(self, search: BatchSearch, batch: Batch, row: int) -> None:
        """Post the CAS that changes the slot of a row, or fills it, which is tentative then."""
        slot, word = batch.slots[row], batch.words[row]
        try:
            if batch.updates[row]:
                # LINEARIZES: update
                batch.tickets[row] = self.endpoint.post_cas(slot, word, batch.desired[row])
            else:
                tentative = batch.desired[row] | TENTATIVE
                batch.tickets[row] = self.endpoint.post_cas(slot, word, tentative)
                # ORDER: the buckets after the CAS, which is on the same node.
                place = search.places[row]
                self.index.post_row(place, row)
        except NodeFailed:
            batch.states[row] = LEFT

    def end_phase(self, batch: Batch) -> None:
        """End a phase. The rows that have their slots on a lost node are LEFT: put singly, they
        raise the error, after those before them."""
        try:
            self.endpoint.wait()
        except NodeFailed as error:
            for row in range(batch.count):
                slot = batch.slots[row]
                if slot >> NODE_SHIFT == error.node or self.endpoint.failed(slot):
                    batch.states[row] = LEFT

    def _decide_all(self, search: BatchSearch, batch: Batch) -> None:
        """Decide the inserts of a batch; those that may not be decided are LEFT."""
        endpoint = self.endpoint
        for row in range(batch.count):
            if batch.states[row] == READY:
                search.consider(row)
        try:
            search.match(batch.keys, batch.count)
        except LimpetError:
            batch.leave_ready()  # as in `BatchPuts.put`
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            place = search.places[row]
            if search.slots[row] or place.busy or self._has_rival(place, row, batch.slots[row]):
                batch.states[row] = LEFT
            elif endpoint.durable:
                self.index.depend(place, 0)
        if endpoint.durable:
            # ORDER: as in `insert`
            endpoint.persist()
        self.begin_changes()
        for row in range(batch.count):
            if batch.states[row] == READY:
                self._post_decision(batch, row)
        self.end_phase(batch)
        self.end_changes()
        for row in range(batch.count):
            if batch.states[row] == READY:
                won = endpoint.result(batch.tickets[row]) == batch.desired[row] | TENTATIVE
                batch.states[row] = MADE if won else LEFT

    def _post_decision(self, batch: Batch, row: int) -> None:
        """Post the CAS that decides an insert."""
        desired = batch.desired[row]
        try:
            # LINEARIZES: insert
            batch.tickets[row] = self.endpoint.post_cas(
                batch.slots[row], desired | TENTATIVE, desired
            )
        except NodeFailed:
            batch.states[row] = LEFT

    def remove_all(self, batch: Batch) -> None:
        """Do for the READY rows of a batch what `remove` does for one slot. Those that succeed are
        MADE."""
        endpoint, client = self.endpoint, self.client
        batch.first = client.held
        for row in range(batch.count):
            if batch.states[row] == READY:
                batch.places[row] = batch.log(batch.words[row] & REFERENCE_MASK, batch.slots[row])
        client.log_all(batch.objects, batch.links, batch.logged)
        self.begin_changes()
        for row in range(batch.count):
            if batch.states[row] == READY:
                self._post_removal(batch, row, self.vacated(batch.words[row]))
        self.end_phase(batch)
        self.end_changes()
        count = 0
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            if endpoint.result(batch.tickets[row]) == batch.words[row]:
                batch.references[count] = batch.words[row] & REFERENCE_MASK
                count += 1
            else:
                batch.states[row] = LEFT
        if count and not endpoint.durable:
            # A kill leaves all of them in the client journal, and some of them free already.
            self.objects.heap.free_all(batch.references, count)
        whole = count == batch.logged
        for row in range(batch.count):
            if batch.states[row] == READY:
                batch.states[row] = MADE
                if not whole and not endpoint.durable:
                    client.drop(batch.places[row])
        if whole and not endpoint.durable:
            client.drop_all(batch.first, count)

    def _post_removal(self, batch: Batch, row: int, vacant: int) -> None:
        """Post the CAS that makes the slot of a row vacant."""
        try:
            # LINEARIZES: delete
            batch.tickets[row] = self.endpoint.post_cas(batch.slots[row], batch.words[row], vacant)
        except NodeFailed:
            batch.states[row] = LEFT

    def _has_rival(self, place: Place, row: int, slot: int) -> bool:
        """Whether an undecided insert may be of the key of this row: it has the fingerprint. Then
        the row is left; a single put reads the other's key, and gives way or not."""
        left = self.index.tagged[row] & SLOTS
        while left:
            at = lowest_bit(left)
            left &= left - 1
            word = self.index.words[32 * row + at]
            if word & TENTATIVE and not word & FROZEN and self.index.address(place, at) != slot:
                return True
        return False

    def _free_replaced(self, batch: Batch) -> None:
        """Free the objects that the MADE rows have replaced; the client journal has them no
        more."""
        count = made = 0
        for row in range(batch.count):
            if batch.states[row] == MADE:
                made += 1
                if batch.updates[row]:
                    batch.references[count] = batch.words[row] & REFERENCE_MASK
                    count += 1
        if count:
            # A kill leaves all of them in the client journal, and some of them free already.
            self.objects.heap.free_all(batch.references, count)
        if made + count == batch.logged:
            self.client.drop_all(batch.first, batch.logged)
        else:
            for row in range(batch.count):
                if batch.states[row] == MADE:
                    self.client.drop(batch.places[row])
                    if batch.updates[row]:
                        self.client.drop(batch.places[row] + 1)

    def insert(self, place: Place, key: bytes, desired: int, attempt: int) -> int:
        """Put `desired`, at place 0 of the client journal, into a vacant slot of the key, unless
        another slot has the key. The buckets were read, and no slot had it then."""
        index = self.index.room(place)
        if index < 0:
            return FULL
        slot = self.index.address(place, index)
        tentative = desired | TENTATIVE
        self.client.retarget(0, slot)
        vacant = self.index.words[index]
        ticket = self.endpoint.post_cas(slot, vacant, tentative)
        # CRASH(inserting): readers pass over the tentative slot; other inserts may empty it.
        # ORDER: the buckets after the CAS, which is on the same node.
        self.index.read_phase(place)
        if self.endpoint.result(ticket) != vacant:
            self.client.retarget(0, 0)  # as in `replace`
            return AGAIN
        if not self.goes_on(place, key, slot, attempt):
            return AGAIN
        if self.endpoint.durable:
            # ORDER: the new object persists before a slot links to it in force; and so does the
            # absence of the key from all other slots.
            self.index.depend(place, 0)
            self.endpoint.persist()
        return DONE if self.decide(slot, tentative, desired) else AGAIN

    def decide(self, slot: int, tentative: int, desired: int) -> bool:
        """Decide an insert; False: another client has emptied its slot."""
        # LINEARIZES: insert
        ticket = self.endpoint.post_cas(slot, tentative, desired)
        self.endpoint.wait()
        if self.endpoint.result(ticket) != tentative:
            return False
        if not self.endpoint.durable:
            # It is linked, so `unpin` need not look; in a durable pool it has the link persist.
            self.client.drop(0)
        return True

    def goes_on(self, place: Place, key: bytes, slot: int, attempt: int) -> bool:
        """Whether an insert that has put its word into `slot`, and then read the buckets, may
        decide: no other slot has the key, and no rival stands in the way."""
        if self.index.match(place, key, 0, True):
            return False
        return not self.rival(place, key, slot, attempt)

    def rival(self, place: Place, key: bytes, slot: int, attempt: int) -> bool:
        """Whether an undecided insert of the same key is in our way; empty its slot if we may."""
        fingerprint = place.hash & 0xFF
        for index in range(32):
            word = self.index.words[index]
            if not (word & TENTATIVE and index & 7 and word >> 56 == fingerprint) or word & FROZEN:
                continue
            theirs = self.index.address(place, index)
            if theirs == slot:
                continue
            self.objects.post_keyed(word & REFERENCE_MASK & ~TENTATIVE, key)
            self.endpoint.wait()
            if not self.objects.matches(key):
                continue
            if self.goes_first(theirs, slot, attempt):
                return True
            # CRASH(kicked): the other insert frees its object, or the recovery of its client does.
            if not self.kick(theirs, word):
                return True
        return False

    def goes_first(self, theirs: int, slot: int, attempt: int) -> bool:
        """Whether the insert in slot `theirs` goes before ours."""
        return theirs < slot and attempt < PATIENCE

    def kick(self, slot: int, word: int) -> bool:
        """Clear the slot of an undecided insert; False: it has changed."""
        ticket = self.endpoint.post_cas(slot, word, 0)
        self.endpoint.wait()
        return self.endpoint.result(ticket) == word

    def vacated(self, word: int) -> int:
        """The word of a slot after its pair, with this word, was deleted."""
        return 0

    def remove(self, place: Place, slot: int) -> int:
        """Make the slot vacant that was found, with `place.word`."""
        word = place.word
        if word & FROZEN:
            return FULL
        old = self.client.log(word & REFERENCE_MASK, slot)
        # LINEARIZES: delete
        ticket = self.endpoint.post_cas(slot, word, self.vacated(word))
        # CRASH(deleted): the old object is in the client journal and no longer linked.
        self.endpoint.wait()
        if self.endpoint.result(ticket) != word:
            if not self.endpoint.durable:
                self.client.drop(old)  # as in `replace`
            return AGAIN
        if not self.endpoint.durable:
            # It is not linked any more, so `unpin` need not look; in a durable pool it has the slot
            # persist before the object is freed.
            self.client.release(old)
        return DONE
