"""The keys of one batch of puts to a hash store, or of deletes: `Batch`.

A batch has each phase of a single put once, and the verbs of a phase are posted: one exchange with
all nodes concerned (batch_puts.py):

    1. (`BatchSearch`) all entries of directories and all buckets; then all objects with a
       matching fingerprint
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

`BatchSearch` finds the keys of a batch. Its phases, each an exchange with all nodes concerned:

    1   the entries of all directories, and all buckets. If entries are others than this handle
        remembered: where they are split, those of their halves, once for each level; then the
        buckets of these keys again
    2   for each key the object of the first slot with its fingerprint; again, for the keys that
        this object was not of, that of the next such slot, until no key has one left. Most keys
        have no second one

The verbs of a phase are posted (shm/endpoint/verbs.pyx). Between phases each key has a row: its
place, the words of its buckets (`Index.words`), and a reader that has the object that was read for
it. They are valid within an operation, until the next search.

Where posted verbs are done at once (`Endpoint.hints`), each row is looked at as soon as its verbs
are posted, while it is in the CPU's cache; elsewhere after `wait`, all rows in turn. The steps of a
row are the same lines in either case, and so are the phases.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import bit, hash64, lowest_bit
from limpet.shm.endpoint.slots import CLIENT_JOURNAL_SIZE
from limpet.shm.endpoint.words import HELD, HELD_MASK
from limpet.stores.core.object_layout import HEADER
from limpet.stores.core.records import Objects
from limpet.stores.core.status import BATCH, DELETE, LEFT, MADE, PUT, READY
from limpet.stores.race.index import Index, Place
from limpet.stores.race.layout import OBJECT_MASK

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
        self.modes = array("Q", bytes(8 * BATCH))
        """PUT, INSERT, UPDATE or DELETE."""
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

    def take_in(self, pairs: Any, start: int, prefix: int, modes: bytes | None) -> int:
        """Take pairs in from `start` on; how many there are. `prefix`: bytes of an object before
        its header; `modes`: of the pairs; None: all are put."""
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
            self.modes[count] = PUT if modes is None else modes[start]
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
            self.modes[count] = DELETE
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
        """Mark the rows that are to be changed as LEFT."""
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


ARRIVED: Final = 0
KNOWN: Final = 1
SPLIT: Final = 2
"""Of a row whose buckets were posted: they are there; or its entry is another one than this handle
remembered, and its place is known by now; or that entry is split, and the read of its half is
posted."""


class BatchSearch:
    """Finds at most BATCH keys in an index."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.endpoint = index.endpoint
        self.places: list[Place] = []
        self.readers: list[Objects] = []
        """Of each row: its place, and its object. Made for the first batch, as they take memory;
        where verbs are done at once, the first reader is enough."""
        self.slots = array("Q", bytes(8 * BATCH))
        """Of each row: the address of the valid slot with its key, whose word is `word` of the
        place; or 0. Then `busy` is set if the key may be in a slot that is undecided."""
        self.arrivals = array("Q", bytes(8 * BATCH))
        """ARRIVED, KNOWN or SPLIT, of each row."""
        self.left = array("Q", bytes(8 * BATCH))
        """The slots of a row that were not looked at, as bits."""
        self.reading = array("Q", bytes(8 * BATCH))
        """The slot of a row whose object is read in this phase, plus 1; 0: none."""
        self.others = array("Q", bytes(8 * BATCH))
        """The last word of a slot of the row that was found to have another key; 0: none. As long
        as the client is pinned, that word has it: it is not looked at again."""

    # ---- phase 1 --------------------------------------------------------------------------------

    def locate_to_read(self, keys: list[bytes], count: int) -> None:
        """Read the buckets of these keys; `match` finds their slots."""
        self._make_places()
        self.index.agree_to_read()
        for row in range(count):
            self._post_entry(row, hash64(keys[row]))
        self._read_buckets(count)

    def locate_to_write(self, hashes: Any, count: int) -> None:
        """As `locate_to_read`, of the keys with these hashes, in an operation that changes them."""
        self._make_places()
        self.index.agree()
        for row in range(count):
            self._post_entry(row, hashes[row])
        self._read_buckets(count)

    def _make_places(self) -> None:
        while len(self.places) < BATCH:
            self.places.append(Place())

    def _post_entry(self, row: int, hashed: int) -> None:
        """Post the read of the entry of a row, and prefetch its buckets."""
        place = self.places[row]
        self.index.post_locate(place, hashed)
        self.endpoint.prefetch(place.first, 128)
        self.endpoint.prefetch(place.second, 128)

    def _read_buckets(self, count: int) -> None:
        """Read the buckets of the places, whose entries are posted."""
        index = self.index
        at_once = self.endpoint.hints
        unknown = 0
        for row in range(count):
            place = self.places[row]
            index.post_row(place, row)
            if at_once:
                unknown += self._row_arrived(place, row)
        self.endpoint.wait()
        if not at_once:
            for row in range(count):
                place = self.places[row]
                unknown += self._row_arrived(place, row)
        if unknown:
            self._read_again(count)

    def _row_arrived(self, place: Place, row: int) -> bool:
        """The entry and the buckets of a row have arrived. Whether that entry is another one than
        this handle remembered: then they are the wrong buckets."""
        index = self.index
        place.posted = False
        pointer = index.entry_read(place)
        if pointer != place.pointer:
            self.arrivals[row] = KNOWN if index.go_on(place, pointer) else SPLIT
            return True
        index.row_arrived(place, row)
        self.arrivals[row] = ARRIVED
        self.others[row] = 0
        self.consider(row)
        return False

    def _read_again(self, count: int) -> None:
        """Read the buckets of the rows that are KNOWN or SPLIT."""
        index = self.index
        while self._are_split(count):
            self.endpoint.wait()
            for row in range(count):
                if self.arrivals[row] == SPLIT:
                    place = self.places[row]
                    if index.go_on(place, index.entry_read(place)):
                        self.arrivals[row] = KNOWN
        for row in range(count):
            if self.arrivals[row] == KNOWN:
                place = self.places[row]
                index.post_row(place, row)
        self.endpoint.wait()
        for row in range(count):
            if self.arrivals[row] == KNOWN:
                place = self.places[row]
                index.row_arrived(place, row)
                self.others[row] = 0
                self.consider(row)

    def _are_split(self, count: int) -> bool:
        """Whether any row is SPLIT."""
        split = 0
        for row in range(count):
            split += self.arrivals[row] == SPLIT
        return split != 0

    # ---- phase 2 --------------------------------------------------------------------------------

    def consider(self, row: int) -> None:
        """Search this row, whose words are new, by `match`. Afterwards the row has no slot left."""
        place = self.places[row]
        place.busy = 0
        self.slots[row] = 0
        self.left[row] = self.index.candidates(row)

    def match(
        self, keys: list[bytes], count: int, values: list[Any] | None = None, first: int = 0
    ) -> None:
        """Find the slots of the keys whose rows were considered. The value of the key of row k
        becomes number `first + k` of `values`, if the key is there, and that is not negative."""
        at_once = self.endpoint.hints
        while len(self.readers) < (1 if at_once else BATCH):
            self.readers.append(self.index.objects.reader())
        reader = self.readers[0]
        more = True
        while more:
            more = posted = False
            for row in range(count):
                self.reading[row] = 0
                if not self.left[row]:
                    continue
                if not at_once:
                    reader = self.readers[row]
                key = keys[row]
                if self._post_object(row, key, reader):
                    posted = True
                    if at_once and self._object_arrived(row, key, reader, values, first):
                        more = True
            if posted:
                self.endpoint.wait()
            if posted and not at_once:
                for row in range(count):
                    if self.reading[row]:
                        reader = self.readers[row]
                        if self._object_arrived(row, keys[row], reader, values, first):
                            more = True

    def _post_object(self, row: int, key: bytes, reader: Objects) -> bool:
        """Post the read of the next object of a row; False: it has none left."""
        index = self.index
        left = self.left[row]
        while left:
            at = lowest_bit(left)
            left &= left - 1
            word = index.words[32 * row + at]
            if word == self.others[row]:
                continue
            reference = word & OBJECT_MASK
            if word & HELD_MASK == HELD:
                place = self.places[row]
                reference = index.holds.held(place, index.address(place, at), word, key)
                if not reference:
                    continue
            reader.post_keyed(reference, key)
            self.reading[row] = at + 1
            self.left[row] = left
            return True
        self.left[row] = 0
        return False

    def _object_arrived(
        self, row: int, key: bytes, reader: Objects, values: list[Any] | None, first: int
    ) -> bool:
        """The object that was posted has arrived: if it has the key, note its slot, and its value
        in `values`. Whether the row has other slots left."""
        index = self.index
        at = self.reading[row] - 1
        word = index.words[32 * row + at]
        if reader.matches(key):
            place = self.places[row]
            place.word = word
            place.busy = 0
            self.slots[row] = index.address(place, at)
            self.left[row] = 0
            if values is not None and first + row >= 0:
                values[first + row] = reader.value()
            return False
        if word & HELD_MASK != HELD:
            self.others[row] = word
        return self.left[row] != 0

    # ---- afterwards -----------------------------------------------------------------------------

    def settle(self, start: int, end: int) -> bool:
        """Whether each of these rows, whose keys are read only, is decided: its key is there, or it
        is surely missing. In a durable pool what was seen persists first."""
        decided = True
        for row in range(start, end):
            slot = self.slots[row]
            if not slot or self.endpoint.durable:
                place = self.places[row]
                decided = decided and (slot != 0 or not place.busy)
                if self.endpoint.durable:
                    self.index.depend(place, slot)
        return decided

    def missed(self, values: list[Any]) -> list[int]:
        """The places of the keys that have no value."""
        return [at for at, value in enumerate(values) if value is None]
