"""The operations of a hash store: `HashStore`.

A store on the index of RACE hashing has an index that finds (index.py), a writer of slots
(slots.py), a splitter (splitter.py) and a check (check.py). Its operations run in the loops of
every store (base.py). The differences between stores are in the parts, or in a step: `search_once`,
`search_batch`, `_change_once`, `delete_once`, `back_off`.

Search, update and delete are RACE's: read both combined buckets, read the objects whose fingerprint
matches, change the slot. Pairs are written out of place (records.py), never changed while linked.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.slots import MISSED
from limpet.shm.endpoint.words import (
    ADDRESS_MASK,
    OWES,
    VIEWED,
)
from limpet.shm.errors import StoreFull
from limpet.stores.core.base import Attempt, Store, as_bytes
from limpet.stores.core.feed_layout import OPEN
from limpet.stores.core.object_layout import HEADER
from limpet.stores.core.status import (
    AGAIN,
    BATCH,
    DELETE,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    PUT,
    READ,
    UNPROVEN,
    UPDATE,
)
from limpet.stores.race.batch import BatchSearch
from limpet.stores.race.batch_puts import BatchPuts
from limpet.stores.race.check import Check
from limpet.stores.race.glance import Glance
from limpet.stores.race.index import Index, Place, is_valid
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter, progress_of


class HashAttempt(Attempt):
    """Notes of an operation of a hash store: what it met last, which object it makes next."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        """Bytes of the object that the next attempt makes; of the value, if there is a reserved
        one."""
        self.widened = False
        """Whether an object of a class that many objects share was asked for."""
        self.owner: Any = None
        self.reference = self.digest = 0
        """A reserved object, with its owner and the value's checksum; 0: attempts make one."""
        self.busy = self.table = 0
        """`place.busy` and `place.table` after the last attempt."""
        self.wanted = 1
        """Objects that a split needs memory for."""


class HashStore(Store):
    """A store on a hash index. A derived class makes the parts, and passes them to
    `hold_parts`."""

    grows = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.glance: Glance | None = None
        """Gets without a pin, if the store `glances`."""
        self.batches_gets = True

    def hold_parts(self, index: Index, slots: Slots, splitter: Splitter, check: Check) -> None:
        """Hold these parts. Called once, when the store is made."""
        self.index = index
        self.objects = index.objects
        self.slots = slots
        self.splitter = splitter
        self.checker = check
        self.place = Place()
        """The place of the running operation."""
        self.search = BatchSearch(index)
        self.puts: BatchPuts | None = None
        """The puts of a batch, if it has them (`batches_puts`)."""
        self.deletes_batches = True
        """Whether a batch may be of deletes, if it has batches."""
        self.replicas = splitter.replicas

    def glance_by(self, glance: Glance) -> None:
        """From now on a get has no pin if the pool lets it. Called when the store is made, if its
        objects have stamps."""
        self.glance = glance
        self.glances = self.pool.is_in_place

    def batches_puts(self) -> None:
        """From now on `put_many` makes batches. Called when the store is made, unless its single
        puts have steps of their own."""
        self.puts = BatchPuts(self.search, self.slots, self.allocator, self.client, self.replicas)

    def replaced(self, node: int) -> None:
        self.index.replaced(node)

    def forget(self) -> None:
        self.index.forget()
        self.objects.forget()

    # ---- operations -------------------------------------------------------------------------

    def get_once(self, key: bytes, attempt: int, at: int) -> Any:
        found = self.search_once(self.place, key)
        return UNPROVEN if found is None and self.place.busy else found

    def glance_at(self, key: bytes) -> Any:
        return self.glance.value(self.place, key, self.drops)  # type: ignore[union-attr]

    def search_once(self, place: Place, key: bytes) -> Any:
        """The value of a key, or None: then it is missing, unless `place.busy` is set."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if self.endpoint.durable:
            self.index.depend(place, slot)
        if slot:
            return self.objects.value()
        return None

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        first = len(found)
        if self.search_batch(self.place, keys, found):
            return []
        return [row for row in range(first, len(found)) if found[row] is None]

    def _note(self, outcome: int, way: Any, key: bytes, size: int) -> Any:
        met: HashAttempt = HashAttempt(size) if way is None else way
        met.busy, met.table = self.place.busy, self.place.table
        if met.reference:
            self.client.holds.take(met.reference | OWES, met.owner)
            self.client.drop(0)
        return met

    def _go_on(
        self, outcome: int, way: Any, key: bytes, value: bytes, size: int, mode: int, attempt: int
    ) -> Any:
        met: HashAttempt = way
        if outcome == AGAIN:
            self.retries += 1
            if mode != READ:
                self.endpoint.pause(attempt)
            self.back_off(met.busy, met.table, attempt)
        elif outcome == FULL:
            self.grow(key)
        elif met.size == size and not met.widened and self.allocator.coarse:
            # First an object of a size class that many objects share, if there is one.
            met.widened = True
            met.size = self.allocator.coarsened(size)
        elif not self._obtain_memory(key, mode, met.size, met.size == size):
            met.size = size
        return met

    # ---- values in place ----------------------------------------------------------------------

    def hold(self, key: bytes, owner: Any) -> tuple[int, int] | None:
        self._count(1, 0)
        attempt = 0
        while isinstance(found := self._hold(key, owner), HashAttempt):
            attempt += 1
            self._go_on(AGAIN, found, key, b"", 0, PUT, attempt)
        if found is None:
            self.endpoint.figures[self.row + MISSED] += 1
        return found

    def _hold(self, key: bytes, owner: Any) -> Any:
        """As `hold`, in one attempt; a HashAttempt: its slot is not at rest."""
        place = self.place
        self.client.enter()
        try:
            self.require_there()
            found = self.hold_once(place, key, owner)
            if found is None and (place.busy or place.word):
                return self._note(AGAIN, None, key, 0)
            return found
        finally:
            self.client.leave()

    def hold_once(self, place: Place, key: bytes, owner: Any) -> tuple[int, int] | None:
        """As `hold`. None: the key is missing, or, if `place.busy` or `place.word` is set, its slot
        is not at rest."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if self.endpoint.durable:
            self.index.depend(place, slot)
        if not slot:
            place.word = 0
            return None
        if not is_valid(place.word):
            place.busy = self.busy_slot(slot)
            return None
        holds = self.client.holds
        holds.take(place.word & OBJECT_MASK | VIEWED, owner)
        # ORDER: the slot after the record, as holds.py says.
        ticket = self.endpoint.post_load(slot)
        self.endpoint.wait()
        if self.endpoint.result(ticket) == place.word:
            return self.objects.value_place()
        holds.give_back(owner)
        return None

    def busy_slot(self, slot: int) -> int:
        """The word for `place.busy` to wait for a slot that is held by a transaction."""
        return 0

    def reserve_object(self, key: bytes, size: int, owner: Any) -> tuple[int, int]:
        self._count(1, 1)
        reference = self._allocated(key, size, owner)
        start = self.objects.prefix + HEADER + (len(key) + 7 & ~7)
        return reference, (reference & ADDRESS_MASK) + start

    def have_ready(self, key: bytes, size: int) -> None:
        """Have memory ready for a value of `size` bytes. Raises as `put` does."""
        self._allocated(key, size, None)

    def _allocated(self, key: bytes, size: int, owner: Any) -> int:
        """An object for this key and a value of `size` bytes, held for this owner; for None, it is
        free again."""
        exact = self.objects.size_for(key, size)
        while not (reference := self._allocate(key, exact, owner)):
            self._obtain_memory(key, PUT, exact, True)
        return reference

    def _allocate(self, key: bytes, exact: int, owner: Any) -> int:
        """As `_allocated`, in one attempt; 0: there is no memory ready."""
        client = self.client
        client.enter()
        try:
            self.require_there()
            self.index.agree()
            node = self.index.node_of(self.index.table_of(key))
            reference = self.allocator.allocate(node, exact, self.replicas)
            if reference and owner is not None:
                # ORDER: in the record before it leaves the client journal. An object that stays
                # there is not linked, so the end of the operation frees it.
                holds = client.holds
                holds.take(reference | OWES, owner)
                client.drop(0)
            return reference
        finally:
            client.leave()

    def link_reserved(self, key: bytes, owner: Any, reference: int, size: int, digest: int) -> int:
        way = HashAttempt(size)
        way.owner, way.reference, way.digest = owner, reference, digest
        return self._change(key, b"", size, PUT, way)

    def resume(self, way: Any) -> int:
        """Begin an attempt of an operation that has kept something; the size of its object."""
        met: HashAttempt = way
        if met.reference:
            client = self.client
            holds = client.holds
            # ORDER: in the client journal before the record is given back, so that a kill in
            # between leaves it to one of them.
            record = holds.record_of(met.owner)
            client.log(met.reference, record)
            self.endpoint.swap(record, 0)
            holds.release(met.owner)
            # the program has written there without verbs
            self.endpoint.dirty(met.reference & ADDRESS_MASK, met.size)
        return met.size

    def let_go_of(self, owner: Any) -> None:
        holds = self.client.holds
        self.client.enter()
        try:
            holds.give_back(owner)
        finally:
            self.client.leave()

    def search_batch(self, place: Place, keys: list[bytes], found: list[bytes | None]) -> bool:
        """Append the values of at most BATCH keys; 2 round trips, or one more for keys that have
        the fingerprint of another key.

        False: some of the Nones are undecided, as `place.busy` was set.
        """
        search = self.search
        count = len(keys)
        first = len(found)
        found += [None] * count
        search.locate_to_read(keys, count)
        search.match(keys, count, found, first)
        return bool(search.settle(0, count))

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 3 round trips."""
        data = key if type(key) is bytes else as_bytes("key", key)
        if self._change(data, b"", 0, DELETE, None) == MISSING:
            raise KeyError(key)

    def swap(self, key: Any, expected: bytes, value: Any = None) -> bool:
        """As of every store; 3 round trips in `race`, 2 if the value is another one."""
        if self.transactional or not self.swaps:
            return bool(Store.swap(self, key, expected, value))
        name, was = as_bytes("key", key), as_bytes("value", expected)
        data = b"" if value is None else as_bytes("value", value)
        size = self.objects.size_of(name, data)
        way = HashAttempt(size)
        way.expected = was
        return self._change(name, data, size, DELETE if value is None else UPDATE, way) == DONE

    def delete_once(self, place: Place, key: bytes) -> int:
        """DONE, MISSING, AGAIN or FULL."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if slot:
            return self.slots.remove(place, slot)
        if place.busy:
            return AGAIN
        if self.endpoint.durable:
            self.index.depend(place, 0)
        return MISSING

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        return self._change(key, value, self.objects.size_of(key, value), mode, None)

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        place = self.place
        if way is not None:
            size = self.resume(way)
            if way.expected is not None:
                return self._swap_once(key, way.expected, value, size, mode)
        if mode == DELETE:
            return self.delete_once(place, key)
        self.index.post_choose(place, key)
        reference = self.make_object(place, key, value, size, way)
        if not reference:
            return NO_MEMORY
        desired = (place.hash & 0xFF) << 56 | reference
        self.index.read_buckets(place)
        slot = self.index.match(place, key, 0, True)
        if slot:
            if mode == INSERT:
                if self.endpoint.durable:
                    self.index.depend(place, slot)
                return EXISTS
            return self.slots.replace(place, slot, desired)
        if place.busy:
            return AGAIN
        if mode == UPDATE:
            if self.endpoint.durable:
                self.index.depend(place, 0)
            return MISSING
        return self.slots.insert(place, key, desired, attempt)

    def _swap_once(self, key: bytes, expected: bytes, value: bytes, size: int, mode: int) -> int:
        """As `_change_once`, if the value is `expected`. A kind that `swaps` has it."""
        raise NotImplementedError

    def make_object(self, place: Place, key: bytes, value: bytes, size: int, way: Any) -> int:
        """A new object with this pair, or the reserved one with its key, at place 0 of the client
        journal; 0: no memory is ready."""
        if way is not None:
            met: HashAttempt = way
            if met.reference:
                self.objects.write_head(met.reference, key, met.size, met.digest)
                return met.reference
        reference = self.allocator.allocate(self.index.node_of(place.table), size, self.replicas)
        if reference:
            self.objects.write_hashed(reference, key, value, place.hash)
        return reference

    # ---- batches of puts (batch_puts.py) ----------------------------------------------------

    def put_many(self, pairs: Any) -> None:
        """`put` each (key, value) of `pairs`, a mapping or an iterable; not atomic as a whole.

        The pairs of a list, a tuple or a dict are put in batches: 3 round trips for up to 11
        updates or 22 inserts; one more if a subtable is another one than before, or if a new key
        has the fingerprint of another key. (`fusee`: fusee/batch_rounds.py.) Raises as `put` does:
        all pairs before the one that it is raised for are put then, and perhaps some after it; but
        after NodeFailed those of a batch are each put or not.
        """
        if type(pairs) is dict:
            pairs = list(pairs.items())
        if self.puts is None or (type(pairs) is not list and type(pairs) is not tuple):
            Store.put_many(self, pairs)
            return
        start = 0
        while start < len(pairs):
            left: list[int] = []
            start = self._batch(pairs, start, left, None)
            for at in left:
                key, value = pairs[at]
                self.put(key, value)

    def delete_many(self, keys: Any) -> int:
        """Delete each of `keys` that is there; how many were. Not atomic as a whole. If one of them
        cannot be a key, none is deleted.

        3 round trips for 22 keys in `race`, `rtx-race` and `race-locks`.
        """
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        if self.puts is None or not self.deletes_batches:
            return int(Store.delete_many(self, wanted))
        start = count = 0
        while start < len(wanted):
            left: list[int] = []
            missing: list[int] = []
            end = self._batch(wanted, start, left, missing)
            count += end - start - len(left) - len(missing)
            count += int(Store.delete_many(self, [wanted[at] for at in left]))
            start = end
        return count

    def run_batch(self, window: Any) -> None:
        puts: Any = self.puts
        if window.start == len(window.pairs) or puts is None or self.feed is not None:
            Store.run_batch(self, window)
        else:
            puts.run(window)
            if window.reads():
                window.unread = self.get_batch(window.keys, window.found)

    def _batch(self, items: Any, start: int, left: list[int], missing: list[int] | None) -> int:
        """Put the pairs from `start` on that make a batch, or, with `missing`, delete such keys;
        which of them comes next. `left`, `missing`: as of BatchPuts."""
        puts: Any = self.puts
        self.client.enter()
        try:
            self.require_there()
            if self.feed is not None:
                end = self._batch_noted(items, start, left, missing)
            elif missing is None:
                end = puts.put(items, start, left)
            else:
                end = puts.delete(items, start, left, missing)
        finally:
            self.client.leave()
        self._count(end - start - len(left), end - start - len(left))
        return end

    def _batch_noted(
        self, items: Any, start: int, left: list[int], missing: list[int] | None
    ) -> int:
        """As `_batch`, in an operation, with a feed (feed.py); the lists are empty. Where a pair is
        not one of bytes, the first one is left, to be put singly."""
        feed: Any = self.feed
        puts: Any = self.puts
        keys = items[start : start + BATCH]
        if missing is None:
            keys = [pair[0] for pair in keys if type(pair) is tuple and len(pair) == 2]
            if len(keys) < min(BATCH, len(items) - start) or {*map(type, keys)} != {bytes}:
                left.append(start)
                return start + 1
        feed.open_all(keys, PUT if missing is None else DELETE)
        end = start
        outcome = OPEN
        try:
            if missing is None:
                end = puts.put(items, start, left)
                undone = len(left)
            else:
                end = puts.delete(items, start, left, missing)
                undone = len(left) + len(missing)
            outcome = AGAIN if undone == end - start else DONE
        finally:
            feed.close_some(end - start, outcome)
        return end

    # ---- between two attempts ---------------------------------------------------------------

    def _obtain_memory(self, key: bytes, mode: int, size: int, last: bool) -> bool:
        """Have memory of this size ready; False: there is none. Raises StoreFull if it is the
        `last` size to try."""
        try:
            self.have_memory(key, mode, key, size)
        except StoreFull:
            if last:
                raise
            return False
        return True

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready for an object: `wanted` is its key, by which its node is found, and its
        size in bytes.

        Outside of operations, so that `place` may be another thread's.
        """
        key, size = wanted
        node = self.index.node_of(self.index.table_of(key))
        return self.allocator.replenish(node, size, self.replicas, 0, 0, update)

    def back_off(self, busy: int, table: int, attempt: int) -> None:
        """Wait for the slot that was `place.busy`, in this directory, in stores that set it."""

    def grow(self, key: bytes) -> None:
        """Split the key's subtable, which has no room for it or a frozen slot. Raises StoreFull."""
        splitter = self.splitter
        scope = self.endpoint.background(True)
        attempt = 0
        try:
            while (met := self.within(self._grow_once, key)) is not None:
                if met.outcome == NO_MEMORY:
                    splitter.find_memory(key, met.wanted, not self.spares)
                else:
                    attempt += 1
                    splitter.wait(met.busy, met.table, attempt)
        finally:
            self.endpoint.background(scope)

    def _grow_once(self, key: bytes) -> HashAttempt | None:
        """As `grow`, in an operation. None: it is done."""
        outcome = self.splitter.grow(self.place, key)
        if outcome == DONE:
            return None
        met: HashAttempt = HashStore._note(self, outcome, None, key, 0)
        met.outcome = outcome
        met.wanted = self.splitter.objects_needed if self.place.pointer else 1
        return met

    # ---- the whole table --------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.checker.count(self.within))

    def index_size(self) -> int:
        """Bytes of all subtables."""
        return int(self.checker.size(self.within))

    def growth(self) -> dict[str, Any]:
        """How far the table has grown, and the splits under way (splitter.py)."""
        return progress_of(self)

    def references(self) -> Any:
        return self.checker.references()

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        return self.checker.keys(self.within)

    def check(self) -> None:
        """Verify every invariant of the table in memory; StoreCorrupt names the one that does not
        hold.

        Other clients may be at work; dead ones must have been recovered. NodeFailed: a subtable is
        lost with its node, and the others are sound.
        """
        self.checker.check(self.within)

    def left_by(self, ident: int) -> set[str]:
        return set(self.splitter.left_by(ident))
