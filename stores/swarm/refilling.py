"""Filling the replicas of a store's registers on a node that has new memory: `Refilling`.

All other clients are parked (shm/replacement.py). The index is filled as in any other
replicated store (stores/fusee/restoring.py). Then the replica of each register on the new node gets
the greatest tuple of all (`level`), so that it may count in any majority again.

The replica that is being filled (SWARM section 6) was copied from one other replica, which need not
belong to the majority that has the last tuple. Once it has the greatest tuple of all replicas, it
may count in any majority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import checksum
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import IN_SERVICE
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.links import BUFFER
from limpet.stores.fusee.restoring import Restoring
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import HEADER, READ, STAMP_SHIFT, WRITE
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.replica import Replica
from limpet.stores.swarm.unmapping import Recycling
from limpet.stores.swarm.words import row_of, side_of, stamp_of

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def level(recycling: Recycling, reference: int, node: int) -> None:
    """Give a register's replica on a node being filled the greatest that any replica has."""
    if not recycling.visit(reference):
        return
    quorum, place = recycling.quorum, recycling.register
    new = (node - (reference >> NODE_SHIFT & 0xFF)) % place.nodes
    if new >= place.replicas:
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
