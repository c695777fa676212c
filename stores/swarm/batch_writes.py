"""The phases of a batch of puts (race/batch.py) of keys whose places the cache has: `BatchWrites`.

Each key is in a row, with a register of its own (batch_reads.py), and is WRITten as algorithm 10
says (safe_guess.py); none knows of the others. The verbs of a phase are posted:

    1   only of rows whose state we do not remember (row.py): their words of M, of a majority
    2   the buffers whose turn it is (row.py), or new ones: these are in the client journal, with
        their registers as link addresses, and their used bits set. Then all guess: a WRITE has its
        memory before (safe_guess.py)
    3   line 6 of all: the replicas of each register are read; its value, the pointer to a new
        buffer, and its word of M are written. MAX depends on the CAS of the pointer (trap S13), or
        MAX and the value on a read of the ident, on the same node
    4   in the background, what follows a WRITE: tuples are VERIFIED, and values put in place

So 19 updates are 1 round trip, or 2. A row goes on by itself after phase 3 if its guess was not
good, or its own row in the register was not in order: as a single WRITE does, from there on, with
the tuple that it has guessed. It never guesses again in this operation. Keys that the cache does
not have, whose row is not in order before phase 3, whose value does not suit their buffer, or for
which there is no memory, are LEFT: they are put singly, after the batch. So are those that met a
tombstone, whose guess is withdrawn by then.

A single WRITE uses a buffer again if all replicas that it has read have the ident. Here each
replica is asked alone, as no verb can depend on those of other nodes. One ident is enough for the
memory: no buffer is freed before the ident is cleared on every replica (unmapping.py), so what one
read has seen is safe until our pin ends. A tuple that gets to some replicas of a register that is
being given up is below its tombstone, which a majority has by then; the WRITE finds idents missing,
and withdraws its guess.

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

from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import LARGE_CLASS
from limpet.shm.errors import LimpetError, NodeFailed
from limpet.stores.core.status import LEFT, MADE, READY
from limpet.stores.race.batch import Batch, BatchSearch
from limpet.stores.race.batch_puts import BatchPuts
from limpet.stores.race.slots import Slots
from limpet.stores.swarm.batch_reads import BatchRows
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import DONE, HEADER, ROW
from limpet.stores.swarm.words import is_tombstone

SPARE_PLACES: Final = 3


class BatchWrites(BatchPuts):
    """WRITEs the pairs of a batch. `updates` of the batch are 0: a key takes one place of the
    client journal. Its `words` are the tuples; 0: none was guessed."""

    def __init__(
        self, search: BatchSearch, slots: Slots, allocator: Any, client: Any, replicas: int,
        rows: BatchRows, view: Any,
    ) -> None:  # fmt: skip
        BatchPuts.__init__(self, search, slots, allocator, client, replicas)
        self.batch = Batch(self.batch.most - SPARE_PLACES)
        self.rows = rows
        self.finder = rows.finder
        self.view = view

    # ---- phase 1 --------------------------------------------------------------------------------

    def find_all(self, batch: Batch) -> None:
        """Select the registers of all rows, and know our own rows in them. A row that has to look
        further is LEFT."""
        rows = self.rows
        self.finder.attend()
        rows.select(batch.keys, batch.count)
        unknown = 0
        for row in range(batch.count):
            register = rows.registers[row]
            batch.updates[row] = 0
            batch.words[row] = 0
            if rows.at[row] < 0 or not register.row.is_writer():
                batch.states[row] = LEFT
            elif not register.row.known:
                register.quorum.post(ROW)
                unknown += 1
        if unknown:
            self.endpoint.wait()
        for row in range(batch.count):
            register = rows.registers[row]
            if batch.states[row] == READY and not self._is_in_order(register):
                batch.states[row] = LEFT

    def _is_in_order(self, register: KeyRegister) -> bool:
        """Whether our row of the register is known, or its words have arrived, and a WRITE may
        begin."""
        quorum, row = register.quorum, register.row
        if not row.known and (
            quorum.arrived() != DONE or is_tombstone(quorum.top) or not row.take_metadata()
        ):
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
            ):
                batch.states[row] = LEFT
                continue
            reference = allocator.next_object(node, size, self.replicas)
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

    def change_all(self, batch: Batch) -> None:
        """WRITE all rows. Raises what the first of them raises, when all others are done."""
        doubtful = not self._post_all(batch)
        failed: LimpetError | None = None
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            batch.states[row] = LEFT
            if batch.words[row]:
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
            cache.drop(batch.keys[row])
