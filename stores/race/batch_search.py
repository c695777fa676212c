"""The search for the keys of a batch, each phase once for all of them: `BatchSearch`.

Phases, each an exchange with all nodes concerned:

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

from limpet.shm.endpoint.fabric import hash64, lowest_bit
from limpet.shm.endpoint.words import HELD, HELD_MASK
from limpet.stores.race.index import Index, Place
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.records import Objects
from limpet.stores.status import BATCH

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
        """Have `match` look at this row, whose words are new. A row has no slot left afterwards."""
        place = self.places[row]
        place.busy = 0
        self.slots[row] = 0
        self.left[row] = self.index.candidates(row)

    def match(
        self, keys: list[bytes], count: int, values: list[Any] | None = None, first: int = 0
    ) -> None:
        """Find the slots of the keys whose rows were considered. The value of the key of row k
        becomes number `first + k` of `values`, if the key is there."""
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
            if values is not None:
                values[first + row] = reader.value()
            return False
        if word & HELD_MASK != HELD:
            self.others[row] = word
        return self.left[row] != 0
