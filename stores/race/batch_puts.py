"""The phases of a batch of puts, or deletes (batch.py says what a batch is): `BatchPuts`."""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, REFERENCE_MASK, TENTATIVE
from limpet.shm.errors import LimpetError
from limpet.stores.core.base import Window
from limpet.stores.core.status import CONTESTED, INSERT, LEFT, MADE, READY, UPDATE
from limpet.stores.race.batch import Batch, BatchSearch
from limpet.stores.race.index import Place
from limpet.stores.race.layout import FROZEN
from limpet.stores.race.slots import Slots


class BatchPuts:
    """Puts the pairs of a batch to a hash store that has these parts."""

    def __init__(
        self, search: BatchSearch, slots: Slots, allocator: Any, client: Any, replicas: int
    ) -> None:
        self.search = search
        self.index = search.index
        self.objects = self.index.objects
        self.slots = slots
        self.allocator = allocator
        self.client = client
        self.endpoint = self.index.endpoint
        self.replicas = replicas
        self.batch = Batch()

    def put(self, pairs: Any, start: int, left: list[int]) -> int:
        """In an operation: put the pairs from `start` on that make a batch; which pair comes next.
        Those to be put one by one are appended to `left`."""
        batch = self.batch
        if batch.take_in(pairs, start, self.objects.prefix, None) < 2:
            left.append(start)
            return start + 1
        if self._prepare(batch, None):
            self.change_all(batch, None)
        end = start + batch.count
        batch.leave_out(start, left)
        return end

    def _prepare(self, batch: Batch, window: Window | None) -> bool:
        """All phases before the first slot is changed; whether any row is to be changed."""
        try:
            self.find_all(batch, window)
            batch.fit()
            return self.make_all(batch) != 0
        except LimpetError:
            # All keys are put one by one: the key that has met the error meets it again, after
            # those before it.
            return False

    def run(self, window: Window) -> None:
        """In an operation: change the next pairs of a window that make a batch, and read its keys
        in the same phases (`Store.run_batch`)."""
        batch, start = self.batch, window.start
        least = 1 if window.reads() else 2
        if batch.take_in(window.pairs, start, self.objects.prefix, window.modes) < least:
            window.left.append(start)
            window.end = start + 1
        else:
            ready = self._prepare(batch, window)
            window.end = start + batch.count
            if ready:
                self._change(batch, window)
            batch.leave_out(start, window.left)

    def _change(self, batch: Batch, window: Window) -> None:
        """Change all rows. After an error, those are in doubt that may have been changed or not."""
        try:
            self.change_all(batch, window)
        except LimpetError as error:
            window.error = error
            for row in range(batch.count):
                if batch.states[row] == READY or batch.states[row] == CONTESTED:
                    window.doubtful.append(window.start + row)
                    batch.states[row] = MADE

    def delete(self, keys: list[bytes], start: int, left: list[int], missing: list[int]) -> int:
        """In an operation: delete the keys from `start` on that make a batch; which key comes next.
        Those to be deleted one by one are appended to `left`, those that are not there to
        `missing`."""
        batch = self.batch
        batch.take_keys(keys, start)
        ready = False
        try:
            self.find_all(batch, None)
            ready = True
        except LimpetError:
            pass  # as in `put`
        if ready and self.pass_over_missing(batch, start, missing):
            self.slots.remove_all(batch)
        end = start + batch.count
        batch.leave_out(start, left)
        return end

    def pass_over_missing(self, batch: Batch, start: int, missing: list[int]) -> bool:
        """Have the rows be MADE whose keys are missing, and append their places, from `start` on;
        LEFT, if that is not certain. Whether there are others."""
        others = False
        for row in range(batch.count):
            others = others or batch.updates[row] != 0
            if not batch.updates[row]:
                place = self.search.places[row]
                if place.busy:
                    batch.states[row] = LEFT
                else:
                    batch.states[row] = MADE
                    missing.append(start + row)
                    if self.endpoint.durable:
                        self.index.depend(place, 0)
        return others

    def find_all(self, batch: Batch, window: Window | None) -> None:
        """Find the slot of each row, or a vacant one. A row that has to wait, or for which there is
        no room, is LEFT, and so is one whose key is there, or not, other than its mode has it. Read
        the keys of the window, in rows of their own."""
        index, search = self.index, self.search
        count = batch.count
        if window is None or not window.reads():
            search.locate_to_write(batch.hashes, count)
            search.match(batch.keys, count)
        else:
            for row, key in enumerate(window.keys):
                batch.hashes[count + row] = hash64(key)
            total = count + len(window.keys)
            search.locate_to_write(batch.hashes, total)
            values: list[bytes | None] = [None] * len(window.keys)
            search.match(batch.keys + window.keys, total, values, -count)
            window.unread = [] if search.settle(count, total) else search.missed(values)
            window.found = values
        for row in range(count):
            place = search.places[row]
            batch.nodes[row] = index.node_of(place.table)
            batch.heads[row] = place.head
            slot = search.slots[row]
            batch.slots[row] = slot
            batch.updates[row] = slot != 0
            if not self.slots.takes_batches(place):
                batch.states[row] = LEFT
            elif slot:
                word = batch.words[row] = place.word
                if word & FROZEN or word & HELD_MASK == HELD or batch.modes[row] == INSERT:
                    batch.states[row] = LEFT
            elif batch.modes[row] == UPDATE:
                batch.states[row] = LEFT
            else:
                self._find_room(place, batch, row)

    def _find_room(self, place: Place, batch: Batch, row: int) -> None:
        """Find a vacant slot for this row that no earlier row has."""
        index = self.index
        room = -1 if place.busy else index.room_in(place, row)
        while room >= 0 and batch.taken(row, index.address(place, room)):
            index.words[32 * row + room] = TENTATIVE  # so that it is no room for this row
            room = index.room_in(place, row)
        if room < 0:
            batch.states[row] = LEFT
        else:
            batch.slots[row] = index.address(place, room)
            batch.words[row] = index.words[32 * row + room]

    def make_all(self, batch: Batch) -> int:
        """Make the new objects of all rows, with their pairs in the client journal; how many. The
        batch ends at a row for which no memory is ready; such a row is LEFT if it is the first."""
        allocator, slots = self.allocator, self.slots
        allocator.begin_batch()
        batch.first = self.client.held
        count = 0
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            reference = allocator.next_object(batch.nodes[row], batch.sizes[row], self.replicas)
            if not reference:
                if count:
                    batch.end(row)  # the next batch begins with it
                    break
                batch.states[row] = LEFT
                continue
            self.endpoint.prefetch(reference & ADDRESS_MASK, batch.sizes[row], True)
            link = slots.link_of(batch.slots[row], batch.heads[row])
            batch.places[row] = batch.log(reference, link)
            if batch.updates[row]:
                batch.log(batch.words[row] & REFERENCE_MASK, slots.old_link_of(link))
            batch.desired[row] = (batch.hashes[row] & 0xFF) << 56 | reference
            batch.references[count] = reference
            count += 1
        if count:
            self.log_all(batch)
            # ORDER: used after they are in the client journal.
            allocator.heap.take_all(batch.references, count)
            self.write_all(batch)
        return count

    def log_all(self, batch: Batch) -> None:
        """Write the pairs of all rows to the client journal."""
        self.client.log_all(batch.objects, batch.links, batch.logged)

    def write_all(self, batch: Batch) -> None:
        """Write the new objects of all rows."""
        for row in range(batch.count):
            if batch.states[row] == READY:
                self.objects.write_hashed(
                    batch.desired[row] & REFERENCE_MASK,
                    batch.keys[row],
                    batch.values[row],
                    batch.hashes[row],
                )

    def change_all(self, batch: Batch, window: Window | None) -> None:
        """Change the slots of all rows. The keys of `window` may be read in the same phases, unless
        they were. After an error, READY and CONTESTED rows are in doubt."""
        self.slots.change_all(self.search, batch)
