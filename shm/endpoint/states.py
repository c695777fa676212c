"""The state word of a memory node, rings of nodes, and addresses of lost memory. Plain arithmetic.

State word (control segment)
    bits 8-63   generation: how often the node's memory was replaced by new memory (replacement.py)
    bits 0-7    IN_SERVICE
                FAILED: lost, and the view is not changed yet (view.py)
                EXCLUDED: lost, and no replica is counted there
                RESTORING: a client is filling the new memory of this generation; for all other
                clients as EXCLUDED

A client has the memory of one generation mapped. It may use it only while the node's word is that
generation in service, so verbs of a client that still has old memory mapped are refused, as if the
node had failed.

Ring word (control segment)
    bits 0-7    how many nodes the ring has; 0: there is no such ring yet
    bits 8-15   the first of them; the others follow it
    bit 16      OPEN: clients may allocate there

A ring is the nodes that were added to the pool together (shm/growth.py). The first ring, the nodes
that the pool was made with, has no word. A word is written once, and then opened. The rings follow
each other, so the first word that is 0 is the end.

An address with the bit FORMER names a place on a node (bits 40-47) before its memory was replaced:
it raises NodeFailed for ever.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, Field
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterable

IN_SERVICE: Final = 0
FAILED: Final = 1
EXCLUDED: Final = 2
RESTORING: Final = 3
STATE_MASK: Final = 0xFF
GENERATION_SHIFT: Final = 8
FIELDS: Final = (
    Field("node state: generation", 1 << 56, A_SECOND_MAX, LASTS, "no node is replaced so often"),
)

assert CONTROL_NODE == CONTROL
FORMER: Final = 1 << 62
RING_COUNT_MASK: Final = 0xFF
RING_FIRST_SHIFT: Final = 8
RING_OPEN: Final = 1 << 16
DISOWNED: Final = (
    "this process is no longer a client of the pool: its lease was over (its host stood still, or "
    "was too busy to renew it), so it was declared dead and another client has taken over what it "
    "had; or the pool was destroyed; the operation that it was in may have happened or not; open "
    "the pool again"
)
"""The error of a client that another client has declared dead."""
FORKED: Final = (
    "this process was forked in the middle of an operation, which goes on in its parent; here it "
    "has ended without effect, and the handle may be used again"
)
"""The error of a child that goes on with its parent's operation."""
REPLACE: Final = "pool.replace_node (`limpet replace-node`) gives it new memory"
BRING_BACK: Final = "bring it back (bind the device, mount the file system), then open the pool"
PAGES_LOST: Final = (
    "pages of it are poisoned (SIGBUS): what is on them is lost; what is elsewhere on the node can "
    "be read, and this process changes nothing there any more. To write there again: `limpet "
    f"fail-node`, then {REPLACE}, without what only this node had"
)
"""The error of a client that has met a poisoned page."""
LOSS_MET: Final = 1
"""`Endpoint.met_loss`: in this operation a verb has first met poisoned pages."""
LOSS_CUTS: Final = 2
"""A change of their node was refused since, or its effect is unknown."""
FORMERLY: Final = (
    "what was there is gone: the node was replaced, or has lost what was in its memory (the log "
    "says so, and what to do), and no other had a replica of it"
)


def state_of(word: int) -> int:
    """The state in a node's state word."""
    return word & STATE_MASK


def generation_of(word: int) -> int:
    """The generation of a node's memory in its state word."""
    return word >> GENERATION_SHIFT


def node_word(generation: int, state: int) -> int:
    """The state word of a node."""
    return generation << GENERATION_SHIFT | state


@dataclasses.dataclass(frozen=True)
class Ring:
    """Nodes that were added together: the first, how many, and whether clients allocate there."""

    first: int
    count: int
    is_open: bool

    @classmethod
    def of(cls, word: int) -> Ring:
        """The ring with this word."""
        count = word & RING_COUNT_MASK
        return cls(word >> RING_FIRST_SHIFT & RING_COUNT_MASK, count, bool(word & RING_OPEN))

    @property
    def word(self) -> int:
        return self.count | self.first << RING_FIRST_SHIFT | (RING_OPEN if self.is_open else 0)

    @property
    def nodes(self) -> range:
        return range(self.first, self.first + self.count)

    def opened(self) -> Ring:
        """The same ring, open."""
        return Ring(self.first, self.count, True)


def count_nodes(first: int, words: Iterable[int]) -> int:
    """How many nodes a pool has that was made with `first`, and has these ring words; 0: the words
    are damaged."""
    total = first
    for word in words:
        if not word:
            break
        ring = Ring.of(word)
        if not ring.count or ring.first != total or total + ring.count > CONTROL_NODE:
            return 0
        total += ring.count
    return total


def settled(states: list[int]) -> bool:
    """Whether no leader still has to change one of these states (view.py)."""
    return FAILED not in states and RESTORING not in states


def is_last(node: int, states: list[int]) -> bool:
    """Whether no other node is in service."""
    return [other for other, state in enumerate(states) if state == IN_SERVICE] == [node]


def why_last(url: str, node: int, states: list[int]) -> str:
    """The reason why the last node in service, whose memory is there, is not marked as failed."""
    others = [other for other in range(len(states)) if other != node]
    if not others:
        return (
            f"{url}: node {node} is the only one, and its memory is there: without it the pool has "
            f"nothing; `limpet destroy {url}` removes the pool"
        )
    return (
        f"{url}: node {node} is the last one in service, and its memory is there: without it the "
        f"pool has nothing, and no node could be filled again; replace node {others[0]} first: "
        f"pool.replace_node({others[0]}), or `limpet replace-node {url} {others[0]}`"
    )


def former(address: int, node: int) -> int:
    """The address after the memory of `node` was replaced: FORMER if it was on that node."""
    return address | FORMER if address >> 40 == node else address


def why_failed(word: int, expected: int) -> str:
    """The reason why a node with this word cannot be used. `expected`: its word as mapped here,
    -1: none."""
    if state_of(word) == IN_SERVICE:
        return "it was replaced, and this handle has yet to map its new memory: pool.nodes() does"
    if state_of(word) == RESTORING:
        return "it is being replaced"
    if expected < 0:
        return f"it was marked failed before this process opened the pool; {REPLACE}"
    return f"it is marked failed in the control segment; {REPLACE}"


def why_gone(node: int, how: str) -> str:
    """The reason why a segment cannot be used of which pages are gone."""
    if node == CONTROL_NODE:
        way = f"no client can go on without it; {BRING_BACK}"
    else:
        way = f"{BRING_BACK}; or `limpet fail-node`, and {REPLACE}"
    return f"its memory is gone ({how}); {way}"
