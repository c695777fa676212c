"""Whole registers: `check`, and the crash points that a dead client's journal shows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.check import ReplicatedCheck
from limpet.stores.fusee.links import BUFFER, OLD, Link, is_slot
from limpet.stores.race.index import is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.race.parameters import GROUP_WORDS
from limpet.stores.swarm.layout import DELETED, DONE, GONE, HEADER, STAMP_SHIFT, VERIFIED
from limpet.stores.swarm.words import is_tombstone, row_of, side_of, stamp_of, writer_of

if TYPE_CHECKING:
    from limpet.stores.swarm.key_register import KeyRegister
    from limpet.stores.swarm.quorum import Quorum
    from limpet.stores.swarm.registers import Registers


class RegisterCheck(ReplicatedCheck):
    """Looks at all of an index whose slots link to registers."""

    def __init__(
        self, pool: Any, index: Any, tables: Any, logged: Registers, register: KeyRegister
    ) -> None:
        ReplicatedCheck.__init__(self, pool, index, tables, logged)
        self.registers = logged
        self.register = register

    def keys_in(self, group: int) -> list[bytes]:
        found = []
        scope = self.endpoint.background(True)
        try:
            words = self.index.words
            self.endpoint.read_words(group, words, GROUP_WORDS)
            for index in range(GROUP_WORDS):
                word = words[index]
                if index & 7 and is_valid(word):
                    key = self._visit(word & OBJECT_MASK)
                    if self.register.max_register.presence() not in (DELETED, GONE):
                        found.append(key)
        finally:
            self.endpoint.background(scope)
        return found

    def _visit(self, reference: int) -> bytes:
        """Select a register that a slot links to; its key."""
        self.registers.load(reference)
        key: bytes = self.registers.key()
        self.register.open(self.registers, reference)
        return key

    def linked_registers(self) -> list[int]:
        """References to all registers that slots link to; of those whose nodes are lost, some."""
        found: list[int] = self.pairs().tolist()
        return found

    def registers_in_journals(self) -> list[int]:
        """References to the registers that client journals have."""
        return [
            reference
            for reference, link_address in self.tables.view.journals()
            if Link.of(link_address).entry == self.tables.number_of_store
            and is_slot(link_address)
            and not reference & FROZEN
        ]

    def wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        wrong: str = ReplicatedCheck.wrong_with(self, group, slot, word, seen)
        if not wrong:
            scope = self.endpoint.background(True)
            try:
                self._visit(word & OBJECT_MASK)
                wrong = wrong_with(self.register)
            finally:
                self.endpoint.background(scope)
        return wrong


def wrong_with(register: KeyRegister) -> str:
    """The fault found in the current register, or "" if there is none. Called pinned."""
    place = register.place
    register.quorum.read_all()
    for k, replica in enumerate(register.quorum.replicas):
        ident = replica.word(0)
        if not ident:
            continue  # its node is lost, or it is being given up
        if ident != place.ident:
            return f"replica {k} of the register has the ident {ident:#x}, not {place.ident:#x}"
        if replica.word(1) != place.capacity:
            return f"replica {k} of the register has room for {replica.word(1)} bytes in place"
        for index in range(2, 2 + place.buffers):
            word = replica.word(index)
            if max(writer_of(word), row_of(word)) >= place.writers:
                return f"replica {k} of the register has the tuple {word:#x}, which cannot be"
        for row in range(place.writers):
            for side in range(2):
                if _dangles(register.quorum, replica, row, side):
                    return f"replica {k} of the register names a buffer that is not in use"
    outcome = register.protocol.read()
    return "" if outcome in (DONE, DELETED) else "its register cannot be read"


def _dangles(quorum: Quorum, replica: Any, row: int, side: int) -> bool:
    """Whether a pointer that was read still names an object that is not in use."""
    place = quorum.register
    reference = replica.named(row, side)
    if not reference or (place.heap.plausible(reference) and place.heap.used(reference)):
        return False
    try:
        at = place.pointer(replica.k, row, side)
        return bool(place.heap.endpoint.load(at) == reference)
    except NodeFailed:
        return False


def points_of(store: Any, ident: int) -> set[str]:
    """The named crash points that the client journal of a dead client shows of registers."""
    found = set()
    quorum, recycling = store.register.quorum, store.register.recycling
    for reference, link_address in store.tables.view.journal(ident >> INCARNATION_BITS):
        if Link.of(link_address).entry != store.tables.number_of_store:
            continue
        if link_address & BUFFER:
            recycling.visit_home(link_address)
            found |= _points_of_buffer(quorum, reference, bool(link_address & OLD))
        elif is_slot(link_address) and link_address & OLD and recycling.visit(reference):
            quorum.read_all()
            found |= _points_of_register(quorum)
    for reference in store.slots_taken():
        if recycling.visit(reference):
            quorum.read_all()
            found |= _points_of_row(quorum, ident >> INCARNATION_BITS)
    return found


def _points_of_row(quorum: Quorum, writer: int) -> set[str]:
    """The crash points that a writer's row of the register that was read shows."""
    found = set()
    place = quorum.register
    for replica in quorum.replicas:
        tops = [replica.metadata(row) for row in range(place.buffers)]
        if any(is_tombstone(top) and row_of(top) == writer for top in tops):
            found.add("entombed")
        own = max((top for top in tops if row_of(top) == writer), default=0)
        for side in range(2):
            reference = replica.named(writer, side)
            if own and reference and side != side_of(own) and replica.word(0):
                with contextlib.suppress(NodeFailed):
                    at = place.beside(reference, replica.k)
                    words = place.heap.endpoint.read(at, HEADER)
                    header = np.frombuffer(words, dtype="<u8").tolist()
                    if header[1] == place.ident and header[0] >> STAMP_SHIFT > stamp_of(own):
                        found.add("turned")
    return found


def _points_of_buffer(quorum: Quorum, reference: int, old: bool) -> set[str]:
    quorum.read_all()
    found = set()
    named = False
    for replica in quorum.replicas:
        for row in range(quorum.register.writers):
            for side in range(2):
                if replica.named(row, side) == reference:
                    named = True
                    top = replica.metadata(row)
                    if (row_of(top), side_of(top)) != (row, side):
                        found |= set() if old else {"pointer"}
                    else:
                        found |= {"put", "verified"} if top & VERIFIED else {"put"}
    return found if named or not old else {"emptied"}


def _points_of_register(quorum: Quorum) -> set[str]:
    idents = [replica.word(0) for replica in quorum.replicas]
    return set() if all(idents) else {"register-given-up"}
