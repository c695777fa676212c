"""The keys of one batch of puts to a hash store, or of deletes: `Batch`.

A batch has each phase of a single put once, and the verbs of a phase are posted: one exchange with
all nodes concerned (batch_puts.py):

    1. all entries of directories and all buckets; then all objects with a matching fingerprint
       (batch_search.py)
    2. memory for all new objects; the pairs of all in the client journal, with the slot that will
       link an object, and the object that it replaces: two writes (client.py); all used bits, those
       of one word at once
    3. all objects, and all slots, by one CAS each; and for inserts, which are tentative then, all
       buckets again. An object, its slot and its buckets are on one node, which does them in this
       order
    4. for inserts one more CAS each (slots.py)
    5. all replaced objects are freed; all pairs leave the client journal by one write, if each row
       has succeeded

Each key is in one row. Equal keys never share a batch: it ends before the second of them. So the
keys of a batch are independent of each other, and the last value of a key that is there twice is
the one that stays. Pairs that are not a tuple or list of two bytes, and values that take more than
SIZE_MAX bytes with their key, end a batch, too; they are put one by one.

The client journal has 23 places: an update takes two, for the new object and the old one, an insert
one; one place stays free. A batch ends at the key for which there is no place: after 11 updates or
22 inserts. That is enough: what a batch does once takes about as many instructions as half a key. A
longer journal would make every client slot, and each look at the dead, longer. A handle that has
just met an update takes no more than half as many keys into its next batch, so it seldom reads
buckets of keys for which there is no place. Of replicated tables fewer keys make a batch
(fusee/batch_rounds.py).

States of a row: LEFT, it is put by a single put afterwards; READY, it is to be changed; MADE, it is
changed. A row is left if a single put would have to wait, split, get memory or begin again. The
rows that are left are put in their order, after the batch.

A kill leaves behind: the pairs of each row in the client journal, as a single put does. Each row is
put or not, whatever the others are: recovery looks at each pair alone.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import bit, hash64
from limpet.shm.endpoint.slots import CLIENT_JOURNAL_SIZE
from limpet.stores.object_layout import HEADER
from limpet.stores.status import BATCH, LEFT, MADE, READY

ROWS_MAX: Final = CLIENT_JOURNAL_SIZE - 1
SIZE_MAX: Final = 4096
"""Bytes of the largest object in a batch: a larger one takes longer to write than all the rest."""

assert ROWS_MAX <= BATCH


class Batch:
    """The rows of a batch. A store has one, and uses it again; only within an operation."""

    def __init__(self, most: int = ROWS_MAX) -> None:
        """`most`: places of the client journal that it may take; or, of batches that take none,
        how many rows."""
        self.most = most
        self.count = 0
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.states = array("Q", bytes(8 * BATCH))
        self.sizes = array("Q", bytes(8 * BATCH))
        """Bytes of the objects."""
        self.hashes = array("Q", bytes(8 * BATCH))
        self.nodes = array("Q", bytes(8 * BATCH))
        """The memory node of each new object."""
        self.heads = array("Q", bytes(8 * BATCH))
        """Of replicated subtables: the node of replica 0."""
        self.slots = array("Q", bytes(8 * BATCH))
        """The slot that has the key, or a vacant one."""
        self.words = array("Q", bytes(8 * BATCH))
        """The word of the slot before."""
        self.updates = array("Q", bytes(8 * BATCH))
        """1: the slot has the key; 0: it is vacant."""
        self.desired = array("Q", bytes(8 * BATCH))
        """The word of the slot afterwards."""
        self.places = array("Q", bytes(8 * BATCH))
        """The place of the new object in the client journal; the next one is the old object's. Of
        a row that is deleted, the place of the old one."""
        self.first = 0
        self.logged = 0
        """The first place of the client journal that the rows have taken, and how many."""
        self.objects = array("Q", bytes(8 * CLIENT_JOURNAL_SIZE))
        self.links = array("Q", bytes(8 * CLIENT_JOURNAL_SIZE))
        """The objects and the slots that they name."""
        self.tickets = array("Q", bytes(8 * BATCH))
        """The result of the CAS of the slot, after `wait`."""
        self.references = array("Q", bytes(8 * BATCH))
        """The objects of a step, as `Heap` takes them."""
        self.width = most // 2

    def take_in(self, pairs: Any, start: int, prefix: int) -> int:
        """Take pairs in from `start` on; how many there are. `prefix`: bytes of an object before
        its header."""
        count = 0
        seen = 0
        keys: list[bytes] = []
        values: list[bytes] = []
        end = min(len(pairs), start + self.width)
        while start < end:
            each = pairs[start]
            if type(each) is not tuple or len(each) != 2:
                break
            pair = each
            if type(pair[0]) is not bytes or type(pair[1]) is not bytes:
                break
            key, value = pair
            size = prefix + HEADER + (len(key) + 7 & ~7) + len(value)
            if size > SIZE_MAX:
                break
            hashed = self.hashes[count] = hash64(key)
            if seen >> (hashed & 63) & 1 and self.repeats(count):
                break
            seen |= bit(hashed & 63)
            keys.append(key)
            values.append(value)
            self.sizes[count] = size
            self.states[count] = READY
            count += 1
            start += 1
        self.begin(keys, values)
        return count

    def take_keys(self, keys: list[bytes], start: int) -> int:
        """As `take_in`, of keys that are to be deleted."""
        count = 0
        end = min(len(keys), start + self.most)
        while start + count < end:
            self.hashes[count] = hash64(keys[start + count])
            if self.repeats(count):
                break
            self.states[count] = READY
            count += 1
        self.begin(keys[start : start + count], [])
        return count

    def begin(self, keys: list[bytes], values: list[bytes]) -> None:
        """Begin with these rows."""
        self.keys = keys
        self.values = values
        self.count = len(keys)
        self.logged = 0

    def repeats(self, row: int) -> bool:
        """Whether the key of this row may be in an earlier row, too."""
        hashed = self.hashes[row]
        same = 0
        for other in range(row):
            same += self.hashes[other] == hashed
        return same != 0

    def end(self, row: int) -> None:
        """End the batch before this row."""
        self.count = row

    def taken(self, row: int, slot: int) -> bool:
        """Whether an earlier row has this slot."""
        same = 0
        for other in range(row):
            same += self.slots[other] == slot
        return same != 0

    def fit(self) -> int:
        """End the batch at the row for which the client journal has no place; how many rows it
        keeps."""
        places = 0
        updates = 0
        for row in range(self.count):
            if self.states[row] == READY:
                places += 1 + self.updates[row]
                updates += self.updates[row]
                if places > self.most:
                    self.count = row
                    break
        self.width = self.most // 2 if updates else self.most
        return self.count

    def leave_ready(self) -> None:
        """Have the rows that are to be changed be LEFT."""
        for row in range(self.count):
            if self.states[row] == READY:
                self.states[row] = LEFT

    def leave_out(self, start: int, left: list[int]) -> None:
        """Append to `left` the places, from `start` on, of the pairs that are not put. Forget the
        pairs."""
        for row in range(self.count):
            if self.states[row] != MADE:
                left.append(start + row)
        self.keys = []
        self.values = []

    def log(self, reference: int, link: int) -> int:
        """Note an object for the client journal, with the slot that links it; its place there."""
        self.objects[self.logged] = reference
        self.links[self.logged] = link
        self.logged += 1
        return self.first + self.logged - 1
