"""Marking a memory node as failed although its memory may be there: never the last one in service.

A node that is lost is marked by the client that meets it. A node that a user gives up
(`pool.fail_node`, `limpet fail-node`) may be sound, and is refused if it is the last one in
service, since a node is filled from those that are left. Two users may give up two nodes at the
same moment, and each find the other's still in service. So the order of these marks is decided by
one word.

FAILING (control segment)
    bits 8-63   generation of the memory that is given up
    bits 0-7    1 + its node; 0: none was given up yet

Steps
    1. read FAILING, and mark the node that it names, unless that has been done, or that node is the
       last one in service by now
    2. read the states of all nodes: is the node of this call in service, and not the last one?
    3. FAILING -> this node and generation, by CAS from the word of step 1; else begin again
    4. once more as step 2; then mark the node: generation, IN_SERVICE -> generation, FAILED, by CAS

So when step 3 succeeds, all marks that were decided before are made and seen in step 2, or given
up, and no other was decided since. A word of FAILING may come back only if its node was not marked,
being the last one, and is given up once more: then it means the same.

A kill between steps 3 and 4 leaves a node that is in service and will be marked by the next call,
for whichever node, unless others were lost meanwhile, and it is the last one. A client that is
stopped there marks the same memory or, if that was replaced meanwhile, none.

A lost node is marked without this word, also just before step 4 marks: no order helps then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.layout import FAILING, NODE_STATES
from limpet.shm.endpoint.states import IN_SERVICE, generation_of, is_last, state_of

if TYPE_CHECKING:
    from collections.abc import Callable

_GENERATION_SHIFT: Final = 8
_NODE_MASK: Final = 0xFF


def fail(
    node: int,
    nodes: int,
    load: Callable[[int], int],
    cas: Callable[[int, int, int], int],
    mark: Callable[[int, int], bool],
    refuse: Callable[[list[int]], None],
) -> bool:
    """Mark `node` of so many nodes as failed; False: it is not in service, or another did it.

    `load`, `cas`: verbs on the control segment. `mark(node, generation)` is step 4, and returns
    whether it has changed the state. `refuse(states)` is called when the node is the last one in
    service, and raises unless its memory is gone.
    """
    while True:
        decided = load(FAILING)
        named, named_generation = (decided & _NODE_MASK) - 1, decided >> _GENERATION_SHIFT
        words, states = _seen(nodes, load)
        there = 0 <= named < nodes and generation_of(words[named]) == named_generation
        if there and states[named] == IN_SERVICE and not is_last(named, states):
            mark(named, named_generation)
        words = _given_up(node, nodes, load, refuse)
        if not words:
            return False
        generation = generation_of(words[node])
        # LINEARIZES: a node is given up.
        if cas(FAILING, decided, generation << _GENERATION_SHIFT | node + 1) == decided:
            return bool(_given_up(node, nodes, load, refuse)) and mark(node, generation)


def _seen(nodes: int, load: Callable[[int], int]) -> tuple[list[int], list[int]]:
    """The words of all nodes, and their states."""
    words = [load(NODE_STATES + 8 * each) for each in range(nodes)]
    return words, [state_of(word) for word in words]


def _given_up(
    node: int,
    nodes: int,
    load: Callable[[int], int],
    refuse: Callable[[list[int]], None],
) -> list[int]:
    """The words of all nodes if this one can be given up; []: it is not in service."""
    words, states = _seen(nodes, load)
    if states[node] != IN_SERVICE:
        return []
    if is_last(node, states):
        refuse(states)
    return words
