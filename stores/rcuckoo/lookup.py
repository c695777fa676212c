"""Finding a key in an `rcuckoo` store, and reading its value (RCuckoo sections 3.1 and 3.2.1).

A key is looked up by reading both of its rows in one phase. An entry is valid if its row is whole.
A key is missing if both rows are whole, and have their sequences still when these are read again:
then both were as they were read at one moment, between the last of the rows and the first of the
sequences. So an entry that moves from the row that was read later to the one that was read first is
not missed (C3); the paper reads no version again. A long value is read from its extent, in a second
phase. `get_many` has the same phases for all of its keys.

Rows with sums are read as a whole, adjacent ones by one covering read, as in the paper. The
sequences are read again in the same phase, behind the rows on their node, by clients to which that
costs no message: by remote ones, whose phase is one message to each node, and in a batch. Other
clients read them in a second phase, and only after a key that is in neither row.

Rows without sums are where the memory is mapped: a client looks at them where they are, copies the
value, and reads the sequences again after that (`stands`), by verbs of the background, as every get
without a pin does (inline.py).
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import DROPS, NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.errors import StoreCorrupt
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineIndex
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN, DONE, MISSING
from limpet.stores.rcuckoo.layout import HEAD_WORDS, LOOKS_MAX, SEQUENCE
from limpet.stores.rcuckoo.locks import LockJournal, Locks
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.rows import DependentHash, Rows
from limpet.stores.rcuckoo.search import PathSearch


class KeyRows:
    """The two rows of a key, and its entry in them.

    `hash`: of the key. `table`: its number. `first`, `second`: its rows; `one`, `two`: these as
    they were read. `row`, `slot`: of its entry, if it was found; else `slot` is -1. `value`: of the
    entry, `reference`: to its extent, or 0. It is valid within the operation that has chosen it;
    outside of that it only guides the wait.

    `direct`: the rows are looked at where they are (`Row`). `covered`: one read has both of them.
    `again`: their sequences are read again in the same phase; of `direct` ones always.
    """

    def __init__(self, rows: Rows, direct: bool) -> None:
        self.direct = direct
        self.hash = 0
        self.table = 0
        self.first = 0
        self.second = 0
        self.first_at = 0
        self.second_at = 0
        """Addresses of the rows."""
        self.one = rows.row(direct)
        self.two = rows.row(direct)
        self.covered = False
        self.again = direct
        self.first_image: Any = None if direct else rows.image(2, False)
        self.second_image: Any = None if direct else rows.image(1, False)
        """The words that are read if it is not direct."""
        self.row = self.one
        self.slot = -1
        self.value = b""
        self.reference = 0
        self.first_ticket = 0
        self.second_ticket = 0
        """Of the sequences that are read again, if it is not direct."""


class Lookup(InlineIndex):
    """The tables of a store, and finding keys in them, for one client. `found`: the result of
    the running operation."""

    def __init__(
        self, pool: Any, name: str, parameters: RcuckooParameters, objects: Objects
    ) -> None:
        """`objects`: reads extents."""
        super().__init__()
        self.name = name
        self.endpoint = pool.endpoint
        self.objects = objects
        clients = pool.parameters.clients
        size = parameters.table_size(clients)
        self.tables = array("Q", regions.attach(pool, name, parameters.tables, size))
        self.journal_size = parameters.journal_size
        self.locks_at = parameters.locks_at(clients)
        self.rows_at = parameters.rows_at(clients)
        self.row_count = parameters.rows
        self.places = DependentHash(parameters.rows, parameters.locality)
        summed = parameters.sums or not pool.parameters.coherent or pool.parameters.multi_host
        self.rows = Rows(pool.endpoint, parameters, summed)
        self.row_size = 8 * parameters.row_words
        self.direct = not summed
        self.again = pool.remote
        self.searches: list[PathSearch | None] = [None] * parameters.tables
        """The search of each table, with its cached rows, once an insert has needed it."""
        self.journal = LockJournal(pool.endpoint)
        self.locks = Locks(pool.endpoint, pool.client, parameters, self.journal)
        self.found = KeyRows(self.rows, self.direct)
        self.batch: list[KeyRows] = []
        self.extents: list[Objects] = []
        """For each key of a batch, its rows and a reader of its extent, once they are needed."""

    def replaced(self, node: int) -> None:
        """From now on, this memory node has new memory."""
        for table in range(len(self.tables)):
            self.tables[table] = former(self.tables[table], node)

    # ---- steps of operations --------------------------------------------------------------------

    def find_once(self, key: bytes, attempt: int) -> int:
        found = self.found
        self.choose(found, key)
        self.post_proven(found, self.again)
        self.endpoint.wait()
        outcome = self.look_up(found, key)
        if outcome == AGAIN and attempt > LOOKS_MAX and self.is_damaged(found):
            raise self.damaged(found)
        return outcome

    def glance(self, key: bytes) -> int:
        found = self.found
        self.choose(found, key)
        self.post_proven(found, self.again)
        self.endpoint.wait()
        self.arrive(found)
        if not self.find(found, key):
            return MISSING
        self.take(found)
        return AGAIN if found.reference else DONE

    def proves(self, endpoint: Any, drops: int) -> bool:
        found = self.found
        missing = found.slot < 0
        if found.direct:
            one, two = missing or found.row is found.one, missing or found.row is found.two
            return self._stands(found, one, two, DROPS, drops)
        return self.is_proven(found, missing) and endpoint.stands(
            DROPS, drops, DROPS, drops, DROPS, drops, DROPS, drops
        )

    def is_object(self) -> bool:
        return self.found.reference != 0

    def value_found(self) -> bytes:
        found = self.found
        return self.value(found) if found.reference else found.value

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places of those whose rows are changing."""
        busy = []
        later = []
        start = len(found)
        while len(self.batch) < len(keys):
            self.batch.append(KeyRows(self.rows, self.direct))
        for index, key in enumerate(keys):
            at = self.batch[index]
            self.choose(at, key)
            self.prefetch(at)
        for index in range(len(keys)):
            at = self.batch[index]
            self.enter_table(self.tables[at.table])
            self.post_proven(at, True)
        self.endpoint.wait()
        for index, key in enumerate(keys):
            at = self.batch[index]
            self.enter_table(self.tables[at.table])
            outcome = self.look_up(at, key)
            value = None
            if outcome == AGAIN:
                busy.append(start + index)
            elif outcome == DONE:
                if at.reference:
                    self._extent(index).post(at.reference)
                    later.append(index)
                else:
                    value = at.value
            found.append(value)
        if later:
            self.endpoint.wait()
        for index in later:
            extent = self._extent(index)
            extent.arrived()
            found[start + index] = extent.value()
        return busy

    def _extent(self, index: int) -> Objects:
        """The reader of the extent of this key of a batch."""
        while len(self.extents) <= index:
            self.extents.append(self.objects.reader())
        return self.extents[index]

    # ---- the place of a key ---------------------------------------------------------------------

    def choose(self, found: KeyRows, key: bytes) -> None:
        """Work out a key's hash, table and rows; set rows and locks to those of the table."""
        found.hash = hash64(key)
        found.table = self.table_of(found.hash)
        base = self.tables[found.table] + self.rows_at
        if self.rows.base != base:
            self.enter_table(self.tables[found.table])
        places = self.places
        places.place(found.hash)
        found.first = places.first
        found.second = places.second
        found.first_at = base + self.row_size * found.first
        found.second_at = base + self.row_size * found.second

    def table_of(self, hashed: int) -> int:
        """The table of a key, by its hash."""
        return (hashed >> 32) * len(self.tables) >> 32

    def node_of(self, key: bytes) -> int:
        """The node with the key's table, and with its extent."""
        return self.tables[self.table_of(hash64(key))] >> NODE_SHIFT & 0xFF

    def enter_table(self, base: int) -> None:
        """Set rows and locks to those of the table at this address."""
        self.rows.base = base + self.rows_at
        self.locks.base = base + self.locks_at

    def prefetch(self, found: KeyRows) -> None:
        """Prefetch the header lines of a key's rows."""
        self.endpoint.prefetch(found.first_at, 8 * HEAD_WORDS)
        self.endpoint.prefetch(found.second_at, 8 * HEAD_WORDS)

    def post(self, found: KeyRows) -> None:
        """Post the reads of the key's rows. After `wait`, `arrive`."""
        if found.direct:
            # ORDER: a sequence, the first word, is read before the rest.
            found.one.address = found.first_at
            found.two.address = found.second_at
            self.endpoint.post_read(found.first_at, found.one.head, HEAD_WORDS)
            self.endpoint.post_read(found.second_at, found.two.head, HEAD_WORDS)
        else:
            self._post_copies(found)

    def _post_copies(self, found: KeyRows) -> None:
        """Post the reads of both rows as a whole, by one covering read if they are adjacent."""
        low = min(found.first, found.second)
        found.covered = found.first + found.second == 2 * low + 1
        if found.covered:
            self.rows.post(found.first_image, low, 2)
        else:
            self.rows.post(found.first_image, found.first, 1)
            self.rows.post(found.second_image, found.second, 1)

    def arrive(self, found: KeyRows) -> None:
        """After the phase: have the rows that were read."""
        if not found.direct:
            upper = self.rows.row_words if found.covered else 0
            first = upper if found.first > found.second else 0
            found.one.arrive(found.first_image, first)
            found.two.arrive(
                found.first_image if found.covered else found.second_image, upper - first
            )

    def remember(self, found: KeyRows) -> None:
        """Cache rows that were read as a whole, if inserts into their table search for paths."""
        search = self.searches[found.table]
        if search is not None:
            search.cache_row(found.one, found.first)
            search.cache_row(found.two, found.second)

    def post_proven(self, found: KeyRows, again: bool) -> None:
        """Post these reads so that `is_proven` can say, after `wait`, whether they count.

        `again`: the sequences are read again in this phase.
        """
        self.post(found)
        if not found.direct:
            found.again = again
            if again:
                self._post_sequences(found)

    def _post_sequences(self, found: KeyRows) -> None:
        """Post loads of both rows' sequences."""
        # ORDER: after both rows.
        found.first_ticket = self.endpoint.post_load(found.first_at)
        found.second_ticket = self.endpoint.post_load(found.second_at)

    def find(self, found: KeyRows, key: bytes) -> bool:
        """Whether the rows that were read have the key; `row` and `slot` are its entry's then."""
        tag = found.hash & 0xFF
        found.row = found.one
        found.slot = found.row.find(key, tag)
        if found.slot < 0:
            found.row = found.two
            found.slot = found.row.find(key, tag)
        return found.slot >= 0

    def take(self, found: KeyRows) -> None:
        """Copy what the entry that was found has: `value`, or `reference`."""
        found.reference = found.row.reference_there(found.slot)
        if not found.reference:
            found.value = found.row.value_there(found.slot)

    def number(self, found: KeyRows) -> int:
        """The number of the row with the entry that was found."""
        return found.first if found.row is found.one else found.second

    def look_up(self, found: KeyRows, key: bytes) -> int:
        """After the phase of `post_proven`: DONE: the key was found in a row that is proven;
        MISSING: it is in neither, and both are; AGAIN: one is being written, whose lock we wait
        for."""
        self.arrive(found)
        if self.again and not found.direct:
            self.remember(found)
        there = self.find(found, key)
        if there:
            self.take(found)
        if self.is_proven(found, not there):
            return DONE if there else MISSING
        return AGAIN

    def is_proven(self, found: KeyRows, both: bool) -> bool:
        """After all looks: whether the row with the entry that was found, or both rows at one
        moment, were whole; else we wait for the lock of one that was not."""
        one = both or found.row is found.one
        two = both or found.row is found.two
        if found.direct:
            proven = self._stands(found, one, two, 0, 0)
        elif both:
            proven = self._are_proven(found)
        else:
            proven = self.rows.is_whole(found.row)
        if not proven:
            torn = two and not self.rows.is_whole(found.two)
            self.locks.wait_for(found.second if not one or torn else found.first)
        return proven

    def _are_proven(self, found: KeyRows) -> bool:
        """Whether both rows, which were copied, are whole, and then had their sequences still; a
        phase, if these were not read with the rows."""
        if not self.rows.is_whole(found.one) or not self.rows.is_whole(found.two):
            return False
        if not found.again:
            self._post_sequences(found)
            self.endpoint.wait()
        return (
            self.endpoint.result(found.first_ticket) == found.one.head[SEQUENCE]
            and self.endpoint.result(found.second_ticket) == found.two.head[SEQUENCE]
        )

    def _stands(self, found: KeyRows, one: bool, two: bool, drops_at: int, drops: int) -> bool:
        """Whether these rows were whole, and have not changed since their header lines were read,
        and the word at `drops_at`, if there is one, is `drops`."""
        first, before = found.first_at, found.one.head[SEQUENCE]
        second, then = found.second_at, found.two.head[SEQUENCE]
        if not one:
            first, before = second, then
        elif not two:
            second, then = first, before
        if (before | then) & 1:
            return False
        if not drops_at:
            drops_at, drops = first, before
        # ORDER: after all looks.
        return self.endpoint.stands(first, before, second, then, first, before, drops_at, drops)

    # ---- the entry ------------------------------------------------------------------------------

    def value(self, found: KeyRows) -> bytes:
        """The value that was taken; of an extent, a phase."""
        if not found.reference:
            return found.value
        self.objects.post(found.reference)
        self.endpoint.wait()
        self.objects.arrived()
        return self.objects.value()

    def copies_of(self, found: KeyRows, key: bytes) -> int | None:
        """The number of its rows that have a key; None: they are being changed."""
        self.choose(found, key)
        self.post_proven(found, True)
        self.endpoint.wait()
        self.arrive(found)
        tag = found.hash & 0xFF
        copies = int(found.one.find(key, tag) >= 0) + (found.two.find(key, tag) >= 0)
        return copies if self.is_proven(found, True) else None

    def link_of(self, found: KeyRows, key: bytes) -> int | None:
        """The reference in a key's entry; 0: it has none; None: its rows are being changed."""
        self.choose(found, key)
        self.post_proven(found, True)
        self.endpoint.wait()
        self.arrive(found)
        reference = found.row.reference(found.slot) if self.find(found, key) else 0
        return reference if self.is_proven(found, True) else None

    # ---- damage ---------------------------------------------------------------------------------

    def is_damaged(self, found: KeyRows) -> bool:
        """Whether one of the rows is not whole, and no client is writing it."""
        return self.is_torn(found.first) or self.is_torn(found.second)

    def is_torn(self, number: int) -> bool:
        """Whether a row of the present table is not whole, and no client is writing it.

        "Not whole" and "not locked" are two facts of two moments (trap C13): a writer may end, and
        another one begin, between them. So the row is read once more after its lock: if a client
        had been writing it at the first read, a word of it would be another one by now. With sums
        that need not be its sequence or its sum, which are the new ones before the header is.
        """
        rows, locks = self.rows, self.locks
        row = rows.read(number)
        if rows.is_whole(row):
            return False
        locks.wait_for(number)
        # ORDER: the row, its lock, the row again.
        if self.endpoint.load(locks.busy):
            return False
        return rows.is_same(row, rows.read(number))

    def damaged(self, found: KeyRows) -> StoreCorrupt:
        """The error when `is_damaged`."""
        return StoreCorrupt(
            f"{self.name}: row {found.first} or {found.second} of table {found.table} is not "
            "whole, and no client is writing it: memory was damaged. Other keys can be read; "
            "destroy the pool"
        )
