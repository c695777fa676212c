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
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.fabric import words_bytes
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
)
from limpet.stores.swarm.max_register import MaxRegister, Protocol
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.registers import Register, Registers, area_of, first_of
from limpet.stores.swarm.replica import Buffer
from limpet.stores.swarm.row import Row, Turns
from limpet.stores.swarm.safe_guess import SafeGuess
from limpet.stores.swarm.unmapping import Recycling
from limpet.stores.swarm.words import is_tombstone, row_of, side_of, tuple_word
from limpet.stores.swarm.write_back import WriteBack


class Tombstone:
    """WRITE of a tombstone to the current register."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row
        self.buffer = Buffer()

    def write(self, ticket: int) -> int:
        """WRITE a tombstone that has this number; 2 round trips.

        DONE: it is at a majority, or another one that came meanwhile. DELETED: another one is at a
        majority. GONE: the register is given up. AGAIN: nothing was written.
        """
        quorum, row = self.quorum, self.row
        writer = row.identify()
        outcome = quorum.gather(ROW, quorum.majority)
        quorum.endpoint.wait()
        if outcome != DONE or is_tombstone(quorum.top):
            # One of another client, or one left in our row, which may have no room for a second.
            outcome = self.max_register.presence()
            return AGAIN if outcome == DONE else outcome
        if not row.take_metadata():
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
        self.protocol = protocol(self.max_register, self.quorum, self.row, pool.clock)
        self.tombstone = Tombstone(self.max_register, self.quorum, self.row)
        self.recycling = Recycling(pool, self.quorum)
        self.words = array("Q", bytes(8 * (self.place.width + IN_PLACE_WORDS)))
        self.pointers = array("Q", bytes(16 * parameters.writers))
        """The words of a new register, before and after its value."""

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

    def begin(self, word: int, reference: int, value: bytes) -> bytes:
        """Write the first value of the current register, which is new, to its buffer; the words of
        the register."""
        place, buffer, words = self.place, self.row.buffer, self.words
        buffer.reference = reference
        buffer.prepare(place.ident, word, value)
        self.quorum.buffers.write_first(buffer)
        fits = len(value) <= place.capacity
        words[0] = place.ident
        words[1] = place.capacity
        for group in range(place.buffers):
            words[2 + group] = word
        for pointer in range(2 * place.writers):
            self.pointers[pointer] = place.ident
        self.pointers[2 * row_of(word) + side_of(word)] = reference
        words[place.width] = buffer.header[0]
        words[place.width + 1] = buffer.header[2]
        words[place.width + 2] = buffer.header[3] if fits else reference
        place.length = len(value) if fits else 0
        stored = value if fits else b""
        front = words_bytes(words, 0, 8 * (place.width + IN_PLACE_WORDS))
        pointers = words_bytes(self.pointers, 0, 16 * place.writers)
        return b"".join(
            (front, stored, bytes(place.capacity - len(stored)), pointers, bytes(8 * place.locks))
        )


class NewRegister:
    """The register that an insert makes: its `reference`, or 0, and `word`, the tuple it has."""

    def __init__(
        self, allocator: Any, tables: Any, logged: Registers, register: KeyRegister
    ) -> None:
        self.allocator = allocator
        self.tables = tables
        self.logged = logged
        self.register = register
        self.replicas = register.place.replicas
        self.reference = 0
        self.word = 0

    def make(self, node: int, key: bytes, value: bytes) -> bool:
        """Write a register on `node` with its first value, and its buffer, at places 0 and 1 of the
        client journal, and select it; False: there is no memory, `register.row.wanted`."""
        register = self.register
        writer = register.row.identify()
        capacity = self.logged.capacity(key, value)
        size = area_of(len(key)) + register.place.size(capacity)
        wanted = register.row.wanted
        wanted.node, wanted.size, wanted.also = node, size, HEADER + len(value)
        reference = self.allocator.allocate(node, size, self.replicas)
        buffer = 0
        if reference:
            buffer = self.allocator.allocate(node, HEADER + len(value), self.replicas)
        if not buffer:
            return False
        area = area_of(len(key))
        ident = self.tables.ticket()
        register.select(reference, area, ident, capacity, 0, first_of(reference, self.replicas))
        register.row.forget()
        word = tuple_word(register.protocol.clock.guess(), writer, VERIFIED, writer, 0)
        self.logged.birth = 0
        self.logged.write(reference, key, register.begin(word, buffer, value))
        self.reference = reference
        self.word = word
        return True
