"""Whole registers: `check`, the crash points that a dead client's journal shows, and refilling.

`Refilling` fills the replicas of a store's registers on a node that has new memory. All other
clients are parked (shm/replacement.py). The index is filled as in any other replicated store
(stores/fusee/restoring.py). Then the replica of each register on the new node gets the greatest
tuple of all (`level`), so that it may count in any majority again.

The replica that is being filled (SWARM section 6) was copied from one other replica, which need not
belong to the majority that has the last tuple. Once it has the greatest tuple of all replicas, it
may count in any majority.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import checksum
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.states import IN_SERVICE
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.check import ReplicatedCheck
from limpet.stores.fusee.links import BUFFER, OLD, Link, is_slot
from limpet.stores.fusee.restoring import Restoring
from limpet.stores.race.index import is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.race.parameters import GROUP_WORDS
from limpet.stores.swarm.key_register import KeyRegister, Recycling
from limpet.stores.swarm.layout import (
    DELETED,
    DONE,
    GONE,
    HEADER,
    READ,
    STAMP_SHIFT,
    VERIFIED,
    WRITE,
)
from limpet.stores.swarm.register import (
    Registers,
    is_tombstone,
    row_of,
    side_of,
    stamp_of,
    writer_of,
)
from limpet.stores.swarm.replica import Quorum, Replica


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
    writer = store.pool.numbers.number_of(ident)
    for reference in store.slots_taken() if 0 <= writer < quorum.register.writers else ():
        if recycling.visit(reference):
            quorum.read_all()
            found |= _points_of_row(quorum, writer)
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


MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def level(recycling: Recycling, reference: int, node: int) -> None:
    """Give a register's replica on a node being filled the greatest that any replica has."""
    if not recycling.visit(reference):
        return
    quorum, place = recycling.quorum, recycling.register
    new, head, placement = 0, reference >> NODE_SHIFT & 0xFF, place.placement
    while new < place.replicas and placement.beside(head, new) != node:
        new += 1
    if new == place.replicas:
        return
    quorum.read_all()
    there = [replica for replica in quorum.replicas if replica.word(0)]
    if new not in [replica.k for replica in there]:
        return
    _require_service(quorum, there)
    target = quorum.replicas[new]
    place.ident = target.word(0)
    words = [max(replica.metadata(row) for replica in there) for row in range(place.buffers)]
    pointers = [
        _pointer(place.ident, there, row, side) for row in range(place.writers) for side in range(2)
    ]
    for at, pointer in enumerate(pointers):
        if pointer >> 48 & 0xFF != VACANT_CLASS:
            top = words[at // 2 % place.buffers]
            leads = (row_of(top), side_of(top)) == divmod(at, 2)
            wanted = stamp_of(top) << STAMP_SHIFT if leads else 0
            _copy_buffer(quorum, there, pointer & REFERENCE_MASK, new, wanted)
    endpoint = place.heap.endpoint
    endpoint.write(place.address(new) + 16, np.array(words, dtype="<u8"))
    endpoint.write(place.pointer(new, 0, 0), np.array(pointers, dtype="<u8"))
    if place.locks:
        locks = [_lock(quorum, there, writer) for writer in range(place.locks)]
        endpoint.write(place.lock(new, 0), np.array(locks, dtype="<u8"))


def _require_service(quorum: Quorum, there: list[Replica]) -> None:
    """Raise NodeFailed when another replica was lost just now: the filling begins anew."""
    place = quorum.register
    for replica in quorum.replicas:
        if replica not in there:
            try:
                place.heap.endpoint.load(place.address(replica.k))
            except NodeFailed as error:
                if quorum.view.states()[error.node] == IN_SERVICE:
                    raise


def _pointer(ident: int, there: list[Replica], row: int, side: int) -> int:
    """The word of a pointer: on the replica where the greatest tuple leads to it, or on any."""
    found = ident
    best = -1
    for replica in there:
        word = replica.pointer(row, side)
        top = replica.metadata(row)
        leads = top if (row_of(top), side_of(top)) == (row, side) else 0
        if word != ident and leads > best:
            best, found = leads, word
    return found


def _copy_buffer(
    quorum: Quorum, there: list[Replica], reference: int, new: int, wanted: int
) -> None:
    """Copy a buffer, from a replica that has its value, to that beside replica `new`.

    `wanted`: the stamp of the tuple that leads to it, or 0. A replica of the buffer may still have
    an older write of the same register, or may have the value with a later stamp already. A buffer
    acquired while the register's first node was lost has no replica beside that node's. But the
    tuple counts there from now on, so its value is written wherever the buffer has a replica.
    """
    place = quorum.register
    endpoint = place.heap.endpoint
    found: dict[int, bytes] = {}
    lacking = []
    room = place.heap.value_max(place.replicas) - HEADER
    for replica in there:
        source = place.beside(reference, replica.k)
        if replica.k == new or not source:
            continue
        header = endpoint.read(source, HEADER)
        stamp, ident, length, digest = np.frombuffer(header, dtype="<u8").tolist()
        if ident == place.ident and length <= room:
            value = endpoint.read(source + HEADER, length)
            if checksum(value, (stamp + ident + length) & MASK) == digest:
                found[stamp] = header + value
                if stamp >= wanted:
                    continue
        lacking.append(source)
    target = place.beside(reference, new)
    if target and found:
        endpoint.write(target, found.get(wanted) or found[max(found)])
    elif wanted in found:
        for address in lacking:
            endpoint.write(address, found[wanted])


def _lock(quorum: Quorum, there: list[Replica], writer: int) -> int:
    """The lock word with the highest timestamp; with both modes if replicas differ in that.

    A TRYLOCK in READ or WRITE mode that has not succeeded at those two replicas then never does.
    """
    place = quorum.register
    words = [place.heap.endpoint.load(place.lock(replica.k, writer)) for replica in there]
    highest = max(stamp_of(word) for word in words)
    modes = 0
    for word in words:
        if stamp_of(word) == highest:
            modes |= word & (READ | WRITE)
    return highest << STAMP_SHIFT | modes


Pairs = list[tuple[int, int]]
"""References and link addresses, of client journals."""


class Refilling:
    """Of the store of this name. `registers()`: references to all of its registers."""

    def __init__(
        self, pool: Any, name: str, restoring: Restoring, register: KeyRegister,
        registers: Callable[[], list[int]],
    ) -> None:  # fmt: skip
        self.pool = pool
        self.name = name
        self.restoring = restoring
        self.register = register
        self.registers = registers
        self.view = pool.view

    def reconcile(self, pairs: Pairs, failed: list[int]) -> None:
        """Called by the leader. Repair the replicas of every slot that `pairs` names."""
        self.restoring.reconcile(_of_slots(pairs), failed)

    def refill(
        self, node: int, pairs: Pairs, references: Callable[[], Any], losses_survived: int
    ) -> dict[str, int]:
        """Fill the node; counts, as of every replicated store. NodeFailed: too much is lost."""
        self.restoring.require_replicas(node, references)
        self._require_majorities(node, losses_survived)
        found = self.restoring.refill(node, _of_slots(pairs))
        for count, reference in enumerate(self.registers()):
            if not count & 7:  # each takes reads and writes of a whole register
                self.pool.membership.progress()
            level(self.register.recycling, reference, node)
        # A node that failed just now may have had slots; their registers were passed over.
        for other, state in enumerate(self.view.states()):
            if state == IN_SERVICE and self.pool.endpoint.lost(other):
                raise NodeFailed(other, "it was lost while another node was filled")
        return found

    def _require_majorities(self, node: int, losses_survived: int) -> None:
        """Require that a majority of each register on the node is left: it has the last tuple."""
        states = self.view.states()
        if sum(state != IN_SERVICE for state in states) <= losses_survived:
            return
        heap, replicas = self.pool.heap, self.register.place.replicas
        gone = 0
        for count, reference in enumerate(self.registers()):
            if not count & 0xFFF:
                self.pool.membership.progress()
            places = [heap.replica(reference, k) >> NODE_SHIFT for k in range(replicas)]
            left = sum(states[place] == IN_SERVICE for place in places)
            gone += node in places and left < self.register.quorum.majority
        if gone:
            raise NodeFailed(
                node,
                f"with new memory there, older values of {gone} entries of {self.name!r} could be "
                "taken for the last ones, since a majority of their replicas was lost; save what "
                "is left, destroy the pool, and create it again",
            )


def _of_slots(pairs: Pairs) -> Pairs:
    """Those pairs that name slots."""
    return [
        (reference, link_address) for reference, link_address in pairs if not link_address & BUFFER
    ]
