"""The register of a key, with all that a store does to it: its parts, put together.

Register        where its words are, of the key that was selected last
Quorum          its replicas (In-n-Out), of which a majority is read
Row             ours: pointers, buffers, and repair
MaxRegister     M: READ, which writes back the tuple it has read (WriteBack), and WRITE
protocol        SafeGuess, which has a TimestampLock, or Abd: READ and WRITE of a value
Tombstone       the last WRITE
Recycling       buffers and given-up registers that client journals name

A tombstone is the last tuple of a register, greater than all others (SWARM section 5.3). Its number
stands where other tuples have the reference to a buffer. The author also writes it to the key's
slot in the index (records.py).

`NewRegister` makes the register of a key that is not there, with its first value, before the index
has it.

The end of a deleted key: its slot is vacated (`Unmapping`), and its register given up (SWARM
section 5.3). A DELETE decides by the slot: of several authors of tombstones, the one whose number
the slot has in the end has deleted the key. A client that meets a tombstone vacates the slot on
behalf of an author.

`Recycling` looks at registers as client journals name them. A buffer is linked when its register is
in use, has its ident, and names it (row.py).

A WRITE is one phase: if its client dies in it, a pointer may name the buffer on one node, and its
used bit be missing on another, where the block's next owner would allocate it again. So whether a
buffer is linked is asked of a client that sets these bits (`names`).

A register is given up with its key: a tombstone is at a majority by then, and no slot of the index
names it. A client clears its ident on every replica, then frees the buffers that its pointers name,
of all rows, then the register. Another client may be linking a buffer at that moment: either the
first client sees the pointer, or the second one sees the ident cleared and frees the buffer itself.
Or it is writing to its buffer again: then it has read the ident before, under its pin, which keeps
the buffer from being used for something else. A kill leaves the register in the client journal.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.fabric import bit, words_bytes, words_put
from limpet.shm.endpoint.layout import EXACTLY
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, replica_bits
from limpet.shm.errors import AddressError, NodeFailed
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.links import DEATH, ENTRY_SIZE, OLD, PLACE_BITS
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Place
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.swarm.abd import Abd
from limpet.stores.swarm.layout import (
    AGAIN,
    DONE,
    HEADER,
    IN_PLACE_MAX,
    IN_PLACE_WORDS,
    REFUSED,
    ROW,
    TIME_MAX,
    VERIFIED,
    WORDS,
)
from limpet.stores.swarm.max_register import MaxRegister, Protocol, WriteBack
from limpet.stores.swarm.register import (
    Register,
    Registers,
    area_of,
    first_of,
    is_tombstone,
    row_of,
    side_of,
    tuple_word,
)
from limpet.stores.swarm.replica import Buffer, Quorum
from limpet.stores.swarm.row import Row, Turns
from limpet.stores.swarm.safe_guess import SafeGuess


class Recycling:
    """Whole registers of a store. `visit` selects one, and the others work on the one selected."""

    def __init__(self, pool: Any, quorum: Quorum) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.quorum = quorum
        self.register = self.quorum.register

    def visit(self, reference: int) -> bool:
        """Select a register of which only the reference is known; False if there can be none."""
        count = self.register.replicas
        if not self.heap.plausible(reference) or self.heap.replicas(reference) != count:
            return False
        for k in range(count):
            address = self.heap.replica(reference, k) + ENTRY_SIZE
            if self.endpoint.failed(address):
                continue
            try:
                sizes = self.endpoint.load(address)
            except NodeFailed:
                continue
            if self.register.open(reference, sizes):
                return True
        return False

    def visit_home(self, link_address: int) -> bool:
        """`visit` the register that a buffer's link_address names."""
        bits = replica_bits(self.register.replicas)
        return self.visit(link_address >> 56 << 48 | link_address & ADDRESS_MASK | bits)

    def names(self, reference: int, link_address: int) -> bool:
        """Whether a buffer is linked whose pair in a client journal has this link_address; then it
        is in use on all replicas in service. Called pinned."""
        if not self._is_named(reference, link_address):
            return False
        if self.heap.is_whole(reference, False):
            return True
        # ORDER: in our client journal before a bit is set: another client may free it meanwhile.
        held = self.client.log(reference, link_address)
        self.heap.is_whole(reference, True)
        # A kill here leaves it in our client journal, whose recovery looks again.
        linked = self._is_named(reference, link_address)
        if linked:
            self.client.drop(held)
        else:
            self.client.release(held)
        return linked

    def _is_named(self, reference: int, link_address: int) -> bool:
        try:
            return (
                self.visit_home(link_address)
                and self.heap.used(self.register.reference)
                and self._is_linked(reference)
            )
        except NodeFailed:
            return False

    def _is_linked(self, reference: int) -> bool:
        """Whether the register, which may be damaged, names a buffer."""
        self.quorum.read_all()
        for replica in self.quorum.replicas:
            if replica.word(0):
                for row in range(self.register.writers):
                    for side in range(2):
                        if replica.named(row, side) == reference:
                            return True
        return False

    def dispose(self, reference: int) -> None:
        """Give up the buffers of a register that no slot names, but not itself. Called pinned."""
        if self.visit(reference):
            self.dispose_current()

    def dispose_current(self) -> None:
        """`dispose` of the current register."""
        # ORDER: the ident before the pointers: a writer that links a buffer reads it afterwards. On
        # every replica before a buffer is freed: a writer that uses its buffer again has read the
        # ident of one.
        k = 0
        while k < self.register.replicas:
            try:  # around the loop, as it takes as long as a CAS
                while k < self.register.replicas:
                    address = self.register.bases[k]
                    k += 1
                    if not self.endpoint.failed(address):
                        ident = self.endpoint.load(address)
                        if ident:
                            self.endpoint.cas(address, ident, 0)
            except (NodeFailed, AddressError):
                continue
        # CRASH(register-given-up): the client journal names it; its recovery goes on.
        for buffer in self.buffers_named():
            self.heap.free(buffer)

    def rows_named(self) -> int:
        """Bits: the rows of the register that name buffers, on any node in service. Reads all of
        it."""
        found = 0
        self.quorum.read_all()
        for replica in self.quorum.replicas:
            for row in range(self.register.writers):
                if replica.named(row, 0) or replica.named(row, 1):
                    found |= bit(row)
        return found

    def ident(self) -> int:
        """The register's ident, once it was read; 0: it is being given up."""
        found = 0
        for replica in self.quorum.replicas:
            found = max(found, replica.word(0))
        return found

    def buffers_named(self) -> list[int]:
        """References to all buffers that the register names, on any node in service."""
        found: list[int] = []
        self.quorum.read_pointers()
        last = 0
        for k in range(self.register.replicas):
            replica = self.quorum.replicas[k]
            pointers = replica.pointers
            for at in range(2 * self.register.writers):
                word = pointers[at]
                if word == last:
                    continue  # most are empty
                last = word
                if word >> 48 & 0xFF == VACANT_CLASS:
                    continue  # empty, or the number of a tombstone
                reference = word & REFERENCE_MASK
                if reference and self.heap.plausible(reference) and reference not in found:
                    found.append(reference)
        return found


class Unmapping:
    """Vacates the slots of deleted keys."""

    def __init__(
        self,
        tables: ReplicatedTables,
        splitter: ReplicatedSplitter,
        logged: LoggedObjects,
        recycling: Recycling,
    ) -> None:
        self.tables = tables
        self.splitter = splitter
        self.client = tables.client
        self.endpoint = tables.endpoint
        self.recycling = recycling
        self.slot = ReplicatedSlot(tables, logged)

    def unmap(self, place: Place, slot: int, ticket: int) -> bool:
        """Vacate the slot of a deleted key, which has `place.word`; whether `ticket` is the number
        it has then, or had.

        The client acts for the author of the tombstone with that number.
        """
        word = place.word & ~FROZEN
        reference = word & OBJECT_MASK
        self.slot.select(slot, place.head)
        pointer = place.pointer
        offset = (self.slot.link_address & PLACE_BITS) - (pointer & ADDRESS_MASK)
        won = False
        self.slot.current = place.word
        while True:
            held = self.client.log(reference, self.slot.link_address | OLD)
            try:
                if not self.slot.is_frozen_at(word):
                    if self.slot.backups:
                        won = self.slot.write(word, ticket)
                    else:
                        won = self._vacate_alone(word, ticket)
                # ORDER: after the round: a slot frozen by now goes on in a half, whichever client
                # has won.
                if not self.slot.is_frozen_at(word):
                    break
                address = self.splitter.follow(place, pointer, offset)
                pointer = place.pointer
                self.client.drop(held)
                self.slot.select(address, place.head)
            except NodeFailed as error:
                if not self.tables.outlive(error.node):
                    raise
                self.slot.go_to(self.slot.link_address)
            # No look yet at the slot in the half, or on the nodes that are left: the round finds
            # out whether it is frozen.
            self.slot.current = word
        if self.recycling.register.reference == reference:
            self.recycling.dispose_current()  # it was read in this operation
        else:
            self.recycling.dispose(reference)
        self.client.release(held)
        return won

    def _vacate_alone(self, word: int, ticket: int) -> bool:
        """A round without backups: the register's log entry says which client has won."""
        at = self.recycling.heap.replica(word & OBJECT_MASK, 0) + DEATH
        winner = self.endpoint.cas(at, 0, ticket) or ticket
        self.endpoint.wait()
        self.slot.current = self.endpoint.cas(self.slot.address, word, winner)
        self.endpoint.wait()
        return winner == ticket


class Tombstone:
    """WRITE of a tombstone to the current register."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row
        self.buffer = Buffer()

    def begin(self) -> int:
        """Read the register, and our row unless it is `known`, not waited for; the outcome, for
        `write`."""
        return self.quorum.gather(WORDS if self.row.known else ROW, self.quorum.majority)

    def write(self, ticket: int, outcome: int) -> int:
        """WRITE a tombstone that has this number, after the `wait` for `begin`, which had this
        outcome; 1 round trip.

        DONE: it is at a majority, or another one that came meanwhile. DELETED: another one is at a
        majority. GONE: the register is given up. AGAIN: nothing was written.
        """
        quorum, row = self.quorum, self.row
        writer = row.writer
        if outcome != DONE or is_tombstone(quorum.top):
            # One of another client, or one left in our row, which may have no room for a second.
            outcome = self.max_register.presence()
            return AGAIN if outcome == DONE else outcome
        known, row.known = row.known, False
        if known:
            row.renew_words()
            row.unused = 1 << row.side
        elif not row.take_metadata():
            return row.repair()
        row.clear_side()  # its number takes the pointer
        self.buffer.reference = ticket
        word = tuple_word(TIME_MAX, writer, VERIFIED, writer, row.side)
        wrote = self.max_register.write(word, self.buffer)
        # CRASH(entombed): at a minority or a majority; a client that meets it unmaps the key.
        quorum.endpoint.wait()
        return row.repair() if wrote == REFUSED else DONE


class KeyRegister:
    """Of a store whose entry of the catalogue has that number; `owner` names it in messages.
    `turns`: of the handle. `most`: the largest capacity of the registers that are selected."""

    def __init__(
        self, pool: Any, entry: int, owner: str, parameters: Any, turns: Turns,
        most: int = IN_PLACE_MAX,
    ) -> None:  # fmt: skip
        self.place = Register(
            pool, entry, parameters.replicas, parameters.writers, parameters.buffers,
            parameters.guess, most,
        )  # fmt: skip
        self.quorum = Quorum(pool, self.place, owner)
        self.row = Row(pool, self.quorum, turns)
        write_back = WriteBack(self.quorum, self.row)
        self.max_register = MaxRegister(self.quorum, self.row, write_back)
        protocol: type[Protocol] = SafeGuess if parameters.guess else Abd
        self.protocol = protocol(self.max_register, self.quorum, self.row, pool.numbers.clock)
        self.tombstone = Tombstone(self.max_register, self.quorum, self.row)
        self.recycling = Recycling(pool, self.quorum)

    def select(
        self, reference: int, area: int, ident: int, capacity: int, length: int, first: int
    ) -> None:
        """Make that register the current one; the caller knows its place in full. It is read next;
        `row.forget` or `row.recall` follows."""
        self.place.select(reference, area)
        self.place.ident = ident
        self.place.capacity = capacity
        self.place.length = length
        self.place.first = first

    def open(self, logged: Registers, reference: int) -> None:
        """Make the register current that a slot links to, and that `logged` has loaded; nothing is
        known of our row."""
        self.place.open(reference, logged.sizes)
        self.place.ident = logged.ident(self.place.area)
        self.place.first = first_of(reference, self.place.replicas)
        self.row.forget()


class NewRegister:
    """The register that an insert makes: its `reference`, or 0, and `word`, the tuple it has."""

    def __init__(
        self, allocator: Any, tables: Any, logged: Registers, register: KeyRegister
    ) -> None:
        self.allocator = allocator
        self.tables = tables
        self.logged = logged
        self.register = register
        self.place = register.place
        self.replicas = self.place.replicas
        most = self.place.words_max + 2 * self.place.writers + self.place.locks
        self.words = array("Q", bytes(8 * most))
        """The words of the register."""
        self.reference = 0
        self.word = 0
        self.buffered = False
        """Whether its value has a buffer."""

    def make(self, node: int, key: bytes, value: bytes, asked: bool) -> bool:
        """Write a register on `node` with its first value, at place 0 of the client journal, and
        select it; False: there is no memory, `register.row.wanted`. A value that does not fit in
        place, or that a late store from another host may tear there, is in a buffer, too, at place
        1 (`buffered`).

        `asked`: whether the operation has asked for memory. While memory is short, it has to, since
        what is ready here may be for updates."""
        register = self.register
        writer = register.row.writer
        capacity = self.logged.capacity(key, value)
        area = area_of(len(key))
        size = area + register.place.size(capacity)
        self.buffered = len(value) > capacity or register.row.client.remotely_fenced
        wanted = register.row.wanted
        wanted.node, wanted.size, wanted.exactly = node, size, False
        wanted.also = HEADER + len(value) if self.buffered else 0
        wanted.lent = 0
        if not asked and register.row.is_short(node):
            return False
        reference = buffer = 0
        for each in self.allocator.claims.nodes_for(node, self.replicas):
            reference = self.allocator.allocate(each | EXACTLY, size, self.replicas)
            if reference and self.buffered:
                buffer = self.allocator.allocate(each | EXACTLY, wanted.also, self.replicas)
                if not buffer:  # another node may have memory for both
                    register.row.client.release(0)
                    reference = 0
            if reference:
                break
        if not reference:
            return False
        ident = self.tables.ticket()
        register.select(reference, area, ident, capacity, 0, first_of(reference, self.replicas))
        register.row.forget()
        word = tuple_word(register.protocol.clock.guess(), writer, VERIFIED, writer, 0)
        self.logged.birth = 0
        self.logged.write(reference, key, self._image(word, buffer, value))
        self.reference = reference
        self.word = word
        return True

    def _image(self, word: int, buffer: int, value: bytes) -> bytes:
        """The words of the current register, which is new. Writes its first value to `buffer`,
        unless that is 0 and the value is in place."""
        place, words, first = self.place, self.words, self.register.row.buffer
        first.reference = buffer
        first.prepare(place.ident, word, value)
        fits = len(value) <= place.capacity
        if buffer:
            self.register.quorum.buffers.write_first(first)
        words[0] = place.ident
        words[1] = place.capacity
        for group in range(place.buffers):
            words[2 + group] = word
        at = place.width
        words[at] = first.header[0]
        words[at + 1] = first.header[2]
        words[at + 2] = first.header[3] if fits else buffer
        at += IN_PLACE_WORDS
        words_put(words, 8 * at, value if fits else b"", place.capacity)
        place.length = len(value) if fits else 0
        at += place.capacity >> 3
        for pointer in range(2 * place.writers):
            words[at + pointer] = place.ident
        if buffer:
            words[at + 2 * row_of(word) + side_of(word)] = buffer
        at += 2 * place.writers
        for lock in range(place.locks):
            words[at + lock] = 0
        return words_bytes(words, 0, 8 * (at + place.locks))
