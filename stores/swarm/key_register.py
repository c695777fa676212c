"""The register of a key, with all that a store does to it: its parts, put together.

Register        where its words are, of the key that was selected last
Quorum          its replicas (In-n-Out), of which a majority is read
Row             ours: pointers, buffers, and repair
MaxRegister     M: READ, which writes back the tuple it has read (WriteBack), and WRITE
protocol        SafeGuess, which has a TimestampLock, or Abd: READ and WRITE of a value
Tombstone       the last WRITE
Recycling       buffers and given-up registers that client journals name
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.fabric import words_bytes
from limpet.stores.swarm.abd import Abd
from limpet.stores.swarm.layout import IN_PLACE_MAX, IN_PLACE_WORDS
from limpet.stores.swarm.max_register import MaxRegister
from limpet.stores.swarm.protocol import Protocol
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.recycling import Recycling
from limpet.stores.swarm.register import Register
from limpet.stores.swarm.row import Row
from limpet.stores.swarm.safe_guess import SafeGuess
from limpet.stores.swarm.tombstone import Tombstone
from limpet.stores.swarm.words import row_of, side_of
from limpet.stores.swarm.write_back import WriteBack


class KeyRegister:
    """Of a store whose entry of the catalogue has that number; `owner` names it in messages.
    `most`: the largest capacity of the registers that are selected."""

    def __init__(
        self, pool: Any, entry: int, owner: str, parameters: Any, most: int = IN_PLACE_MAX
    ) -> None:
        self.place = Register(
            pool, entry, parameters.replicas, parameters.writers, parameters.buffers, most
        )
        self.quorum = Quorum(pool, self.place, owner)
        self.row = Row(pool, self.quorum)
        write_back = WriteBack(self.quorum, self.row)
        self.max_register = MaxRegister(self.quorum, self.row, write_back)
        protocol: type[Protocol] = SafeGuess if parameters.guess else Abd
        self.protocol = protocol(self.max_register, self.quorum, self.row, pool.clock)
        self.tombstone = Tombstone(self.max_register, self.quorum, self.row)
        self.recycling = Recycling(pool, self.quorum)
        before = 2 + parameters.buffers + 2 * parameters.writers + IN_PLACE_WORDS
        self.words = array("Q", bytes(8 * before))
        """The words of a new register that are before its value."""

    def select(self, reference: int, area: int, ident: int, capacity: int, first: int) -> None:
        """Make that register the current one; the caller knows its place in full. It is read next;
        `row.forget` or `row.recall` follows."""
        self.place.select(reference, area)
        self.place.ident = ident
        self.place.capacity = capacity
        self.place.first = first

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
        pointers = 2 + place.buffers
        for pointer in range(2 * place.writers):
            words[pointers + pointer] = place.ident
        words[pointers + 2 * row_of(word) + side_of(word)] = reference
        in_place = pointers + 2 * place.writers
        words[in_place] = buffer.header[0] if fits else 0
        words[in_place + 1] = buffer.header[2] if fits else 0
        words[in_place + 2] = buffer.header[3] if fits else 0
        stored = value if fits else b""
        rest = place.capacity - len(stored) + 8 * place.writers
        return words_bytes(words, 0, 8 * (in_place + IN_PLACE_WORDS)) + stored + bytes(rest)
