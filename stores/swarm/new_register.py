"""A register for a key that is not there: made, with its first value, before the index has it."""

from __future__ import annotations

from typing import Any

from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import HEADER, VERIFIED
from limpet.stores.swarm.register import area_of, first_of
from limpet.stores.swarm.registers import Registers
from limpet.stores.swarm.words import tuple_word


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
        register.select(reference, area, ident, capacity, first_of(reference, self.replicas))
        register.row.forget()
        word = tuple_word(register.protocol.clock.guess(), writer, VERIFIED, writer, 0)
        self.logged.birth = 0
        self.logged.write(reference, key, register.begin(word, buffer, value))
        self.reference = reference
        self.word = word
        return True
