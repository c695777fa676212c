"""The view: which memory nodes are in service, and how all clients agree on a new view.

A mechanism with replicas on several nodes has to know which of them are valid; two clients that
disagree could decide one slot in two ways. FUSEE leaves the change of the view to a master
(algorithm 3). Here any client that meets a lost node does it, the leader, under a lease: the word
`leader` holds its id until it is done, or dead and another takes its place.

Words (control segment)
    node states   in service; FAILED: lost, and the view is not changed yet; EXCLUDED: lost, and no
                  replica is counted there; RESTORING: it has new memory, which the leader fills
                  (replacement.py). Verbs raise NodeFailed for the last three. (states.py)
    view          counts the changes; a client compares it at the start of each operation
    leader        client id of the leader (bits 0-47) and a number that it changes each time
                  (48-63), or 0. A leader is pinned. If that client is not pinned, the word is left
                  over from an interrupt, or damaged, and any client may replace it
    parked        in each client slot: the client is pinned, and does nothing until no node is
                  FAILED or RESTORING

Steps of the leader. All are idempotent: if it dies, the next leader begins again.
    1. view += 1: operations that begin from now on look at the node states, and park
    2. close a grace period; wait until every client pinned in it is unpinned, parked or dead (one
       that stands still for a lease is killed, if the pool's policy permits). Now no client is in
       the midst of a step that concerns a FAILED node
    3. the stores put in order what the client journals of those clients name (`reconcile`)
    4. FAILED -> EXCLUDED; view += 1; leader = 0
A node that is RESTORING while its leader is dead goes back to EXCLUDED before step 1.

Parking. A client sets `parked`, waits (or leads), clears it by a full barrier, and looks at the
node states again. So either a leader sees that the client is not parked any more and waits for it,
or the client sees the next FAILED node and parks again before it changes anything. Operations on
replicated stores look at the view first and at the states if that has changed. They rely on states
that were settled when they looked, pinned: from then on, no client excludes a node or puts one in
service without waiting for them. An operation that sees a node RESTORING parks, too: it may have
pinned too late for the leader to wait for it, and in the next moment the node may be in service for
all others. Other code that changes replica sets or used bits of replicas (claims, giving back,
sweeps, recovery) is pinned meanwhile and calls `wait_stable` first: it may go on while a node is
lost, not while one is filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.events import NODE_EXCLUDED
from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.field_ends import WRAPS, Field
from limpet.shm.endpoint.layout import LEADER, NODE_STATES, SLOTS_USED, VIEW, slot_address
from limpet.shm.endpoint.slots import (
    FREE,
    INCARNATION_BITS,
    PARKED,
    PIN,
    client_id,
)
from limpet.shm.endpoint.states import (
    EXCLUDED,
    FAILED,
    IN_SERVICE,
    RESTORING,
    STATE_MASK,
    generation_of,
    settled,
    state_of,
)
from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.clients.client import Client
    from limpet.shm.clients.epoch import Grace, Pinned
    from limpet.shm.clients.membership import Membership

__all__ = ["EXCLUDED", "FAILED", "IN_SERVICE", "View"]

IDENT_BITS: Final = 48
IDENT_MASK: Final = (1 << IDENT_BITS) - 1
MASK: Final = (1 << 64) - 1
FIELDS: Final = (
    Field(
        "leader: number",
        1 << 64 - IDENT_BITS,
        1000,
        WRAPS,
        "a client counts its own leaderships; deceived is a CAS of a client that was stopped for "
        "2^16 of them",
    ),
)


class View:
    """The view of one pool, from one of its clients."""

    def __init__(self, client: Client, grace: Grace, membership: Membership, nodes: int) -> None:
        self.client = client
        self.endpoint = client.endpoint
        self.grace = grace
        self.membership = membership
        self.nodes = nodes
        self.led = 0
        """Our value of the word `leader`, of now or of the last time that we led."""
        self.reconcile: Callable[[list[int]], None] = lambda failed: None
        """Puts the replicas in order that are left when those nodes are lost; set by the pool."""
        self.remap: Callable[[], None] = lambda: None
        """Maps the new memory of nodes that were replaced; set by the pool. Raises NodeFailed."""

    def number(self) -> int:
        """How often the view has changed."""
        return int(self.endpoint.load(VIEW))

    def states(self) -> list[int]:
        """The state of each memory node."""
        return [state_of(word) for word in self.words()]

    def words(self) -> list[int]:
        """The state word of each memory node."""
        found: list[int] = self.endpoint.load_all(
            range(NODE_STATES, NODE_STATES + 8 * self.nodes, 8)
        )
        return found

    def word(self, node: int) -> int:
        """The state word of a memory node."""
        return int(self.endpoint.load(NODE_STATES + 8 * node))

    def failed(self) -> list[int]:
        """The nodes that are lost while the view has not changed."""
        return [node for node, state in enumerate(self.states()) if state == FAILED]

    def unsettled(self) -> bool:
        """Whether the view is being changed, or has to be."""
        return not settled(self.states())

    def _restoring(self) -> bool:
        return RESTORING in self.states()

    def journals(self) -> list[tuple[int, int]]:
        """The pairs with replicated links in the client journals of all clients in operations."""
        return [pair for slot, _, _, _ in self.grace.pinned() for pair in self.journal(slot)]

    def journal(self, slot: int) -> list[tuple[int, int]]:
        """The pairs with replicated links in the client journal of a slot."""
        return [pair for pair in journal_of(self.endpoint, slot) if pair[1] & REPLICATED]

    def settle(self, lost: int | None = None) -> None:
        """Wait in an operation, pinned, until no node is FAILED; change the view if no client does.

        Then map the new memory of replaced nodes. `lost`: a node that raised NodeFailed, of which
        perhaps no other client knows yet. Words that were read before are out of date afterwards.
        """
        scope = self.endpoint.background(True)
        try:
            if lost is not None:
                self.fail_if_lost(lost)
            while self.unsettled():
                self._park(self.unsettled)
            self.remap()
        finally:
            self.endpoint.background(scope)

    def wait_stable(self) -> None:
        """Wait, pinned, until no node is being filled, and map those that were; as `settle`."""
        scope = self.endpoint.background(True)
        try:
            while self._restoring():
                self._park(self._restoring)
            self.remap()
        finally:
            self.endpoint.background(scope)

    def is_stable(self) -> bool:
        """As `wait_stable`, without waiting: False, and nothing is mapped, while a node is
        filled."""
        if self._restoring():
            return False
        self.remap()
        return True

    def _park(self, unsettled: Callable[[], bool]) -> None:
        """Wait, parked, as long as that holds; after an exception we are not parked."""
        attempt = 0
        try:
            # CRASH(parked): the client journal names our unfinished change; the leader settles
            # it.
            self.endpoint.store(self.client.slot + PARKED, 1)
            while unsettled():
                if self.lead():
                    self._change()
                attempt += 1
                self.endpoint.pause(attempt)
        finally:
            self.endpoint.cas(LEADER, self.led, 0)
            # ORDER: the word says not parked before we look once more.
            self.endpoint.swap(self.client.slot + PARKED, 0)

    def lead(self) -> bool:
        """Whether we are the leader, now."""
        leader = self.endpoint.load(LEADER)
        ours = leader & IDENT_MASK == self.client.ident
        if ours and leader == self.led:
            return True
        if leader and not ours and not self._ended(leader & IDENT_MASK):
            return False
        # ORDER: before we lead, so that no client takes this change for an earlier one of ours.
        self.membership.progress()
        # ORDER: a new number each time, or this CAS could replace the word of a later time.
        self.led = (self.led >> IDENT_BITS) + 1 << IDENT_BITS & MASK | self.client.ident
        return bool(self.endpoint.cas(LEADER, leader, self.led) == leader)

    def _ended(self, ident: int) -> bool:
        """Whether that client does not lead any more: it is certainly dead, or in no operation.

        It is not recovered: we are in an operation.
        """
        slot = ident >> INCARNATION_BITS
        if slot >= self.endpoint.load(SLOTS_USED) or not self.endpoint.load(
            slot_address(slot) + PIN
        ):
            return True
        word = self.endpoint.load(slot_address(slot))
        if word >> 60 == FREE or client_id(slot, word) != ident or self.membership.dead(slot, word):
            return True
        seen = self.membership.activity(slot)
        return self.membership.overdue("leader", (ident, seen[1]), steadily=True) and (
            self.membership.end(slot, word, "a change of the view", seen)
        )

    def _change(self) -> None:
        for node, state in enumerate(self.states()):
            if state == RESTORING:  # its leader is dead; no client has used it
                self.move(node, RESTORING, EXCLUDED)
        failed = self.failed()
        if failed:
            self.quiesce()
            self.remap()  # nodes may have been replaced since we parked
            try:
                self.reconcile(failed)
            except NodeFailed as error:
                self.fail_if_lost(error.node)  # one more; begin again for both
                return
        for node in failed:
            # CRASH(reconciled): the next leader does it again, and finds all in order.
            if self.move(node, FAILED, EXCLUDED):
                self.membership.note(NODE_EXCLUDED, node)
        self.resign()

    def fail_if_lost(self, node: int) -> None:
        """Mark a node that raised NodeFailed, unless it is marked already.

        If its memory is not lost for us either, then the memory that we had mapped was replaced.
        """
        if self.endpoint.lost(node):
            self.membership.fail_node(node, generation_of(self.endpoint.expected(node)))

    def move(self, node: int, before: int, after: int) -> bool:
        """Change a node's state, not its generation; False if it was another than `before`."""
        word = self.word(node)
        changed = word & ~STATE_MASK | after
        return state_of(word) == before and (
            self.endpoint.cas(NODE_STATES + 8 * node, word, changed) == word
        )

    def led_once(self, attempt: Callable[[], Any]) -> Any:
        """What `attempt` returns, called while we lead a view that is settled; called again while
        it returns None, as a node or a client was lost. Outside of operations, pinned within."""
        tried = 0
        while True:
            self.membership.sweep()
            try:
                self.client.pin()
                self.settle()
                try:
                    done = None
                    if self.lead():
                        done = attempt()
                finally:
                    self.resign()
            finally:
                self.client.unpin()
            if done is not None:
                return done
            tried += 1
            self.endpoint.pause(tried)

    def quiesce(self) -> None:
        """As the leader, which has changed a node's state: wait until all others are parked.

        A client that begins an operation later sees that the view has changed, and the new states.
        """
        self.endpoint.faa(VIEW, 1)
        closed = self.grace.close_period()
        attempt = 0
        while any(not self._quiet(laggard) for laggard in self.grace.laggards(closed)):
            attempt += 1
            self.membership.progress()
            self.endpoint.pause(attempt)

    def concerns(self, slot: int, ident: int) -> bool:
        """Whether that client, of that slot, is parked, or leads: it does nothing else."""
        parked = self.endpoint.load(slot_address(slot) + PARKED)
        return bool(parked) or self.endpoint.load(LEADER) & IDENT_MASK == ident

    def resign(self) -> None:
        """As the leader, which has changed all states that had to be: end the change."""
        if self.led and self.endpoint.load(LEADER) == self.led:
            self.endpoint.faa(VIEW, 1)
            self.endpoint.cas(LEADER, self.led, 0)

    def _quiet(self, laggard: Pinned) -> bool:
        slot, word, _, _ = laggard
        if self.membership.ours(slot) or self.endpoint.load(slot_address(slot) + PARKED):
            return True
        # A changed pin is no sign of its end: a recoverer changes its own (`share_pin`).
        return self.membership.dead(slot, word) or (
            self.membership.end_if_still("view", laggard, "a change of the view")
        )
