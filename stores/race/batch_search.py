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

A search to write goes by one view of the nodes for all rows: where an index has views, and finds a
new one on the way, it begins again.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import lowest_bit
from limpet.shm.endpoint.words import HELD, HELD_MASK
from limpet.stores.race.index import Index, Place, is_valid
from limpet.stores.race.layout import OBJECT_MASK, SLOTS
from limpet.stores.records import Objects
from limpet.stores.status import BATCH

KNOWN: Final = 1
SPLIT: Final = 2
"""Of a row whose entry is another one than this handle remembered: its place is known by now, or
its entry is split, and the read of its half is posted."""


class BatchSearch:
    """Finds at most BATCH keys in an index."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.endpoint = index.endpoint
        self.places: list[Place] = []
        self.readers: list[Objects] = []
        """Of each row: its place, and its object. Made for the first batch, as they take memory."""
        self.slots = array("Q", bytes(8 * BATCH))
        """Of each row: the address of the valid slot with its key, whose word is `word` of the
        place; or 0. Then `busy` is set if the key may be in a slot that is undecided."""
        self.left = array("Q", bytes(8 * BATCH))
        """The slots of a row that were not looked at, as bits."""
        self.reading = array("Q", bytes(8 * BATCH))
        """The slot of a row whose object is read in this phase, plus 1; 0: none."""
        self.others = array("Q", bytes(8 * BATCH))
        """The last word of a slot of the row that was found to have another key; 0: none. As long
        as the client is pinned, that word has it: it is not looked at again."""

    def prepare(self) -> None:
        """Make the rows, if there are none yet."""
        while len(self.places) < BATCH:
            self.places.append(Place())
            self.readers.append(self.index.objects.reader())

    # ---- phase 1 --------------------------------------------------------------------------------

    def locate_to_read(self, keys: list[bytes], count: int) -> None:
        """Read the buckets of these keys."""
        index = self.index
        self.prepare()
        for row in range(count):
            place = self.places[row]
            index.post_choose_to_read(place, keys[row])
            self._prefetch(place)
        self._read_buckets(count)

    def locate_to_write(self, hashes: Any, count: int) -> None:
        """Read the buckets of the keys with these hashes, in an operation that changes them."""
        index = self.index
        self.prepare()
        while True:
            view = index.viewed()
            for row in range(count):
                place = self.places[row]
                index.post_locate(place, hashes[row])
                self._prefetch(place)
            if index.viewed() == view:
                break
            self.endpoint.wait()
        self._read_buckets(count)

    def _prefetch(self, place: Place) -> None:
        self.endpoint.prefetch(place.first, 128)
        self.endpoint.prefetch(place.second, 128)

    def _read_buckets(self, count: int) -> None:
        """Read the buckets of the places, whose entries are posted."""
        index = self.index
        for row in range(count):
            place = self.places[row]
            index.post_row(place, row)
        self.endpoint.wait()
        known = split = 0
        for row in range(count):
            place = self.places[row]
            self.others[row] = 0
            self.reading[row] = 0
            place.posted = False
            pointer = index.entry_read(place)
            if pointer == place.pointer:
                index.row_arrived(place, row)
                continue
            if index.go_on(place, pointer):
                self.reading[row] = KNOWN
                known += 1
            else:
                self.reading[row] = SPLIT
                split += 1
        if known or split:
            self._read_again(count, split)

    def _read_again(self, count: int, split: int) -> None:
        """Read the buckets of the rows that `reading` marks as KNOWN or, so many, SPLIT."""
        index = self.index
        while split:
            self.endpoint.wait()
            for row in range(count):
                if self.reading[row] == SPLIT:
                    place = self.places[row]
                    if index.go_on(place, index.entry_read(place)):
                        self.reading[row] = KNOWN
                        split -= 1
        for row in range(count):
            if self.reading[row] == KNOWN:
                place = self.places[row]
                index.post_row(place, row)
        self.endpoint.wait()
        for row in range(count):
            if self.reading[row] == KNOWN:
                place = self.places[row]
                index.row_arrived(place, row)

    # ---- phase 2 --------------------------------------------------------------------------------

    def match_all(self, keys: list[bytes], count: int) -> None:
        """Find the slots of these keys among the words of their rows."""
        for row in range(count):
            self.consider(row)
        self.match(keys, count)

    def consider(self, row: int) -> None:
        """Have `match` look at this row; those that are not considered anew have no slot left."""
        place = self.places[row]
        place.busy = 0
        self.slots[row] = 0
        self.left[row] = self.index.tagged_in(row) & SLOTS
        if self.left[row]:
            self.index.prefetch_objects(row)

    def match(self, keys: list[bytes], count: int) -> None:
        """Find the slots of the keys whose rows were considered."""
        while self._post_next(keys, count):
            self.endpoint.wait()
            self._look(keys, count)

    def _post_next(self, keys: list[bytes], count: int) -> bool:
        """Post the read of an object for each row that has one left; whether there was any."""
        index = self.index
        posted = False
        for row in range(count):
            self.reading[row] = 0
            left = self.left[row]
            while left:
                at = lowest_bit(left)
                left &= left - 1
                word = index.words[32 * row + at]
                if not is_valid(word) or word == self.others[row]:
                    continue
                reference = word & OBJECT_MASK
                if word & HELD_MASK == HELD:
                    place = self.places[row]
                    reference = index.holds.held(place, index.address(place, at), word, keys[row])
                    if not reference:
                        continue
                reader = self.readers[row]
                reader.post_keyed(reference, keys[row])
                self.reading[row] = at + 1
                posted = True
                break
            self.left[row] = left
        return posted

    def _look(self, keys: list[bytes], count: int) -> None:
        """The objects that were posted have arrived: note the slots of those that have the key."""
        index = self.index
        for row in range(count):
            if not self.reading[row]:
                continue
            at = self.reading[row] - 1
            word = index.words[32 * row + at]
            reader = self.readers[row]
            if reader.matches(keys[row]):
                place = self.places[row]
                place.word = word
                place.busy = 0
                self.slots[row] = index.address(place, at)
                self.left[row] = 0
            elif word & HELD_MASK != HELD:
                self.others[row] = word
