"""Batches: READs and WRITEs of keys, each with a register of its own, in the same phases.

READ and WRITE of different registers know nothing of each other (safe_guess.py). So a batch has a
`KeyRegister` for each of its keys (`BatchRows`), and shares nothing but phases, whose verbs are
posted. It is for keys whose places the cache has.

    READ of 32 keys        all replicas, the values in place with them                          1
    values out of place    the buffers of all to which what is in place leads                   2
    others                 each is a phase of its own, or more, as of a single READ

A key is left to a single get if its READ would go on after that phase: if no majority has the
greatest tuple, or that is not VERIFIED, or a tombstone; if the cache does not have the key, or the
register is given up; if a node is lost in the phase. Nothing of a READ that ended so has changed
anything: it may begin again.

Puts (`BatchWrites`, a `BatchPuts` of race/batch_puts.py), of keys whose places the cache has. Each
key is in a row, with a register of its own (`BatchRows`), and is WRITten as algorithm 10 says
(safe_guess.py); none knows of the others. The verbs of a phase are posted:

    1   only of rows whose state we do not remember (row.py): their words of M, of a majority
    2   the buffers whose turn it is (row.py), or new ones: these are in the client journal, with
        their registers as link addresses, and their used bits set. Then all guess: a WRITE has its
        memory before (safe_guess.py)
    3   line 6 of all: the replicas of each register are read; its value, the pointer to a new
        buffer, and its word of M are written. MAX depends on the CAS of the pointer (trap S13), or
        MAX and the value on a read of the ident, on the same node
    4   in the background, what follows a WRITE: tuples are VERIFIED, and values put in place

So 19 updates are 1 round trip, or 2. Those of DM-ABD (abd.py) are 2: phase 1 reads the words of all
rows, as the new tuples are greater than what it finds. The READs of a window of a pipeline are in
the same phases, in rows of their own. A row goes on by itself after phase 3 if its guess was not
good, or its own row in the register was not in order: as a single WRITE does, from there on, with
the tuple that it has guessed. It never guesses again in this operation. Keys that the cache does
not have, whose row is not in order before phase 3, whose value does not suit their buffer, or for
which there is no memory, are LEFT: they are put singly, after the batch. So are those that met a
tombstone, whose guess is withdrawn by then.

A single WRITE uses a buffer again if all replicas that it has read have the ident. Here each
replica is asked alone, as no verb can depend on those of other nodes. One ident is enough for the
memory: no buffer is freed before the ident is cleared on every replica (key_register.py), so what
one read has seen is safe until our pin ends. A tuple that gets to some replicas of a register that
is being given up is below its tombstone, which a majority has by then; the WRITE finds idents
missing, and withdraws its guess.

A batch takes 19 of the 23 places of the client journal: a row that goes on may need three more, for
a copy that it writes back and for the buffers that it gives up.

If a node is lost in phase 3, it is in doubt for every row which verbs have happened. Each row is
then written on, with the same tuple, as if its own row was not in order (max_register.py), and its
buffer stays in the client journal until the operation ends, which asks the register whether it
names it.

A kill leaves behind: for each key what a single WRITE leaves at that step. A buffer is named by its
register, or not; recovery looks at each pair of the client journal alone.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import EXACTLY, NODE_SHIFT
from limpet.shm.endpoint.words import LARGE_CLASS
from limpet.shm.errors import LimpetError, NodeFailed
from limpet.stores.core.base import Window
from limpet.stores.core.status import BATCH, INSERT, LEFT, MADE, READY
from limpet.stores.race.batch import Batch, BatchSearch
from limpet.stores.race.batch_puts import BatchPuts
from limpet.stores.race.slots import Slots
from limpet.stores.swarm.fast_reads import FastReads
from limpet.stores.swarm.finder import Finder
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import DONE, HEADER, NOWHERE, ROW, WHOLE, WORDS
from limpet.stores.swarm.register import is_tombstone

CAPACITY_MOST: Final = 1024
"""Bytes in place of the registers of a batch: with larger ones, phases save little."""
POSTED: Final = 4
BUFFERED: Final = 5
FAST: Final = 6
FAST_POSTED: Final = 7
FAST_MADE: Final = 8
"""States of a row that is read (`BatchRows.states`), besides those of every batch."""


class BatchRows:
    """The registers of the keys of a batch. Valid within an operation, until the next batch."""

    def __init__(self, pool: Any, entry: int, owner: str, finder: Finder, parameters: Any) -> None:
        self.pool = pool
        self.entry = entry
        self.owner = owner
        self.finder = finder
        self.parameters = parameters
        self.registers: list[KeyRegister] = []
        """Of each row. Made for the first batch, as they take memory."""
        self.at = array("q", bytes(8 * BATCH))
        """Of each row: the entry of the cache that has its key; NOWHERE: it is left."""
        self.hashes = array("Q", bytes(8 * BATCH))
        """Of each row: the hash of its key."""
        self.states = array("Q", bytes(8 * BATCH))
        """Of each row that is read: LEFT; READY, it is selected; POSTED, its replicas are being
        read; BUFFERED, so is its buffer; MADE, its value is there. On the fast path
        (fast_reads.py): FAST, FAST_POSTED, FAST_MADE."""
        self.values: list[bytes | None] = [None] * BATCH
        self.fast: Any = None
        """`FastReads` of the rows; made with the registers."""

    def make(self) -> None:
        """Have a register for each row."""
        if self.fast is None:
            self.fast = FastReads(self.pool.client, self.finder, BATCH, CAPACITY_MOST)
        while len(self.registers) < BATCH:
            self.registers.append(
                KeyRegister(
                    self.pool,
                    self.entry,
                    self.owner,
                    self.parameters,
                    self.finder.register.row.turns,
                    CAPACITY_MOST,
                )
            )

    def select_reads(self, keys: list[Any]) -> None:
        """Select what a batch reads that has nothing but these keys, from row 0 on: FAST, or as
        `select` does."""
        self.make()
        fast: FastReads = self.fast
        cache = self.finder.cache
        count = len(keys)
        for row in range(count):
            self.hashes[row] = cache.prefetch(keys[row])
        for row in range(count):
            at = cache.find(self.hashes[row])
            if fast.select(row, keys[row], at):
                self.at[row] = at
                self.states[row] = FAST
            else:
                self._select_row(row, keys[row], at)

    def select(self, keys: list[Any], first: int, count: int) -> None:
        """Select the registers of so many of these keys, and the replicas to be read, in the rows
        from `first` on."""
        self.make()
        cache = self.finder.cache
        for row in range(count):
            self.hashes[row] = cache.prefetch(keys[row])
        for row in range(count):
            self._select_row(first + row, keys[row], cache.find(self.hashes[row]))

    def _select_row(self, row: int, key: bytes, at: int) -> None:
        register = self.registers[row]
        place = register.place
        if not self.finder.recall(register, key, at) or place.capacity > CAPACITY_MOST:
            at = NOWHERE
        elif register.quorum.elect():
            register.quorum.prefetch(place.reference, place.area, place.length, place.first)
        else:
            at = NOWHERE
        self.at[row] = at
        self.states[row] = LEFT if at < 0 else READY

    def hand_over(self, row: int) -> None:
        """Go on with a FAST_POSTED row whose READ is not over, as if it had been selected and
        posted as the others."""
        register = self.registers[row]
        self.finder.select(register, self.at[row])
        self.fast.hand_over(row, register.quorum)


class BatchReads:
    """READs of the keys of a batch."""

    def __init__(self, rows: BatchRows) -> None:
        self.rows = rows
        self.finder = rows.finder
        self.endpoint = self.finder.endpoint

    def get(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places in `found` of those that are left. In
        an operation."""
        end = len(keys)
        self.rows.select_reads(keys)
        there = self.post(0, end) and self.wait()
        if there and self.settle(0, end):
            there = self.wait()
        return self.collect(0, end, there, found)

    def post(self, first: int, end: int) -> bool:
        """Post the first phase of the READY rows from `first` to `end`; False: there are none, or
        not all is posted, and each key meets the error again, in its own turn."""
        rows = self.rows
        fast: FastReads = rows.fast
        posted = False
        try:
            for row in range(first, end):
                if rows.states[row] == READY:
                    register = rows.registers[row]
                    rows.states[row] = LEFT
                    register.quorum.post(WHOLE)
                    rows.states[row] = POSTED
                    posted = True
                elif rows.states[row] == FAST:
                    rows.states[row] = LEFT
                    fast.post(row)
                    rows.states[row] = FAST_POSTED
                    posted = True
        except LimpetError:
            return False
        return posted

    def wait(self) -> bool:
        """End a phase; False: as of `post`."""
        try:
            self.endpoint.wait()
        except LimpetError:
            return False
        return True

    def settle(self, first: int, end: int) -> bool:
        """After the phase of all rows that were posted: have their values, or post the reads of the
        buffers that have them; whether there are such reads."""
        rows = self.rows
        fast: FastReads = rows.fast
        posted = False
        for row in range(first, end):
            if rows.states[row] == FAST_POSTED:
                rows.states[row] = LEFT
                value = fast.value(row)
                if value is not None:
                    rows.values[row] = value
                    rows.states[row] = FAST_MADE
                    continue
                rows.hand_over(row)
            elif rows.states[row] != POSTED:
                continue
            register = rows.registers[row]
            quorum = register.quorum
            rows.states[row] = LEFT
            if self.is_settled(register):
                if quorum.post_value(quorum.top):
                    rows.states[row] = BUFFERED
                    posted = True
                else:
                    rows.values[row] = quorum.value_of(quorum.top)
                    rows.states[row] = MADE
        return posted

    def collect(self, first: int, end: int, there: bool, found: list[bytes | None]) -> list[int]:
        """After all phases: append the values of the rows, and return the places in `found` of
        those that are left. `there`: the buffers of BUFFERED rows have arrived."""
        rows = self.rows
        left: list[int] = []
        for row in range(first, end):
            if rows.states[row] == FAST_MADE:
                found.append(rows.values[row])
                rows.values[row] = None
                continue
            register = rows.registers[row]
            quorum = register.quorum
            value = None
            if rows.states[row] == MADE:
                value = rows.values[row]
                rows.values[row] = None
            elif rows.states[row] == BUFFERED and there:
                value = quorum.value_arrived(quorum.top)
            if value is not None:
                register.protocol.mend(quorum.top, value)
                self.finder.note_read(register, DONE, rows.at[row])
            else:
                left.append(len(found))
            found.append(value)
        return left

    def is_settled(self, register: KeyRegister) -> bool:
        """Whether the READ of a register is over with its phase, but for the value: the greatest
        tuple is VERIFIED, at a majority, and no tombstone."""
        return register.quorum.arrived() == DONE and register.quorum.is_final()


SPARE_PLACES: Final = 3


class BatchWrites(BatchPuts):
    """WRITEs the pairs of a batch. `updates` of the batch are 0: a key takes one place of the
    client journal. Its `words` are the tuples; 0: none was guessed."""

    def __init__(
        self, search: BatchSearch, slots: Slots, allocator: Any, client: Any, replicas: int,
        reads: BatchReads, view: Any,
    ) -> None:  # fmt: skip
        BatchPuts.__init__(self, search, slots, allocator, client, replicas)
        self.batch = Batch(self.batch.most - SPARE_PLACES)
        self.reads = reads
        self.rows = reads.rows
        self.finder = reads.finder
        self.guesses = self.finder.guesses
        self.view = view

    # ---- phase 1 --------------------------------------------------------------------------------

    def find_all(self, batch: Batch, window: Window | None) -> None:
        """Select the registers of all rows, and know our own rows in them. A row that has to look
        further is LEFT, and so is an insert. READ the keys of the window, if there is a phase."""
        rows = self.rows
        self.finder.attend()
        rows.select(batch.keys, 0, batch.count)
        first = self._first(window)
        if window is not None and first < BATCH:
            rows.select(window.keys, first, BATCH - first)
        unknown = 0
        for row in range(batch.count):
            register = rows.registers[row]
            batch.updates[row] = 0
            batch.words[row] = 0
            if rows.at[row] < 0 or batch.modes[row] == INSERT or not register.row.is_writer():
                batch.states[row] = LEFT
            elif not (register.row.known and self.guesses):
                register.quorum.post(WORDS if register.row.known else ROW)
                unknown += 1
        if unknown:
            read = self.reads.post(first, BATCH)
            self.endpoint.wait()
            if read:
                self.reads.settle(first, BATCH)
        for row in range(batch.count):
            register = rows.registers[row]
            if batch.states[row] == READY and not self._is_in_order(register):
                batch.states[row] = LEFT

    def _first(self, window: Window | None) -> int:
        """The first row of the keys of a window; they have the last ones, as there are no more than
        BATCH of both."""
        return BATCH if window is None or not window.reads() else BATCH - len(window.keys)

    def _is_in_order(self, register: KeyRegister) -> bool:
        """Whether our row of the register is known, or its words have arrived, and a WRITE may
        begin."""
        quorum, row = register.quorum, register.row
        if not (row.known and self.guesses):
            if quorum.arrived() != DONE or is_tombstone(quorum.top):
                return False
            if row.known:
                row.renew_words()
            elif not row.take_metadata():
                return False
        return quorum.seen()

    # ---- phase 2 --------------------------------------------------------------------------------

    def make_all(self, batch: Batch) -> int:
        """Have a buffer for each row: that of the side whose turn it is, or a new one, which the
        client journal then names; how many. The batch ends at a row for which no memory is ready.
        If that is the first row, it becomes LEFT."""
        allocator, client = self.allocator, self.client
        allocator.begin_batch()
        count = 0
        named = 0
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            register = self.rows.registers[row]
            value = batch.values[row]
            size = HEADER + len(value)
            if not register.row.suits(len(value)):
                batch.states[row] = LEFT
                continue
            if register.row.is_named():
                batch.places[row] = register.row.take_turn(register.row.buffer, len(value))
                register.row.prefetch(len(value))
                named += 1
                continue
            node = register.place.node
            if (
                allocator.heap.size_class(size) == LARGE_CLASS
                or size > self.objects.value_max
                or self.endpoint.failed(node << NODE_SHIFT)
                or register.row.is_short(node)
            ):
                batch.states[row] = LEFT
                continue
            reference = allocator.next_object(node | EXACTLY, size, self.replicas)
            if not reference:
                if count or named:
                    batch.end(row)  # the next batch begins with it
                    break
                batch.states[row] = LEFT
                continue
            # ORDER: the link address before the first pointer.
            batch.places[row] = client.log(reference, register.place.link_address())
            register.row.buffer.use(reference, False)
            register.row.prefetch(len(value))
            batch.references[count] = reference
            count += 1
        if count:
            # ORDER: used after they are in the client journal.
            allocator.heap.take_all(batch.references, count)
        return count + named

    # ---- phases 3 and 4 -------------------------------------------------------------------------

    def change_all(self, batch: Batch, window: Window | None) -> None:
        """WRITE all rows, and READ the keys of the window in the same phase. Raises what the first
        of the rows raises, when all others are done; those that raise are READY then."""
        first = self._first(window)
        self.reads.post(first, BATCH)
        doubtful = not self._post_all(batch)
        if window is not None and first < BATCH:
            there = not doubtful
            if there and self.reads.settle(first, BATCH):
                there = self.reads.wait()
            window.unread = self.reads.collect(first, BATCH, there, window.found)
        failed: LimpetError | None = None
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            if not batch.words[row]:
                batch.states[row] = LEFT
                continue
            try:
                self._finish(batch, row, doubtful)
            except LimpetError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _post_all(self, batch: Batch) -> bool:
        """Phase 3; False: a node was lost meanwhile."""
        posted = self._posted(batch)
        try:
            # ORDER: all that was posted has happened before a row goes on, also after an error.
            self.endpoint.wait()
        except NodeFailed as error:
            self.view.fail_if_lost(error.node)
            return False
        return posted

    def _posted(self, batch: Batch) -> bool:
        try:
            for row in range(batch.count):
                if batch.states[row] == READY:
                    register = self.rows.registers[row]
                    protocol: Any = register.protocol
                    # until it is known how the WRITE has ended
                    self.finder.cache.words[self.rows.at[row] + 4] = 0
                    # ORDER: the tuple before its verbs: once one of them may have happened, the row
                    # is brought to its end.
                    batch.words[row] = protocol.begin(batch.values[row])
                    protocol.post(batch.words[row])
        except NodeFailed as error:
            self.view.fail_if_lost(error.node)
            return False
        return True

    def _finish(self, batch: Batch, row: int, doubtful: bool) -> None:
        register = self.rows.registers[row]
        protocol: Any = register.protocol
        outcome = protocol.finish(batch.words[row], batch.places[row], doubtful)
        cache = self.finder.cache
        if outcome == DONE:
            self.finder.note_write(register, self.rows.at[row])
            batch.states[row] = MADE
        else:
            batch.states[row] = LEFT
            cache.drop(batch.keys[row])
