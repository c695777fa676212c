"""Filling the replicas of a store's registers on a node that has new memory: `Refilling`.

All other clients are parked (shm/replicas/replacement.py). The index is filled as in any other
replicated store (stores/fusee/restoring.py). Then the replica of each register on the new node gets
the greatest tuple of all (level.py), so that it may count in any majority again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import IN_SERVICE
from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.links import BUFFER
from limpet.stores.fusee.restoring import Restoring
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.level import level

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
        """Put the replicas of all slots in order that these pairs name; for a leader."""
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
