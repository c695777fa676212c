"""What the leader of a change of the view does with the slots that somebody was changing.

Algorithm 3 of fusee.txt, lines 5 to 7. Nobody is in the midst of a round (shm/view.py); all slots
whose replicas may differ are named in hands. For each that had a replica on a lost node:

    its primary is still there: all backups get what it has. What was proposed is not in force
    its primary is lost: all replicas that are left get what `chosen` picks from them, and the old
        objects of the round are marked with it

`chosen`, from what the backups had, never undoes what was committed, and never commits a key twice:
    all have one value    it was committed, or may be: a number; an object with a mark in its log
                          entry. An object without one is of an insert that was not decided
    an UPDATED object     the round was that of an object, and not completed: any of its proposals
                          will do
    a number              the round was made void, or is that of a delete: it will do
    else                  the round fills a vacant slot, and was not completed: it is made void

An insert whose round was voided may have the mark INSERTED and still be on all backups. Then nobody
has acted on its being void, since one must have seen it cleared from the backups for that; so it is
in force, and its author, when it looks, finds it linked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.words import REFERENCE_MASK
from limpet.stores.fusee.links import Link
from limpet.stores.fusee.marks import BIRTH, DEATH, UPDATED
from limpet.stores.race.index import is_vacant

if TYPE_CHECKING:
    from collections.abc import Callable


def chosen(values: list[int], birth: Callable[[int], int], number: Callable[[], int]) -> int:
    """What a slot shall have whose backups have `values`.

    `birth`: the mark of the object in a word; `number`: a new word for a vacant slot.
    """
    first = values[0]
    if all(value == first for value in values) and (is_vacant(first) or birth(first)):
        return first
    for value in values:
        if not is_vacant(value) and birth(value) == UPDATED:
            return value
    for value in values:
        if is_vacant(value):
            return value
    return number()


def reconcile(
    store: Any, links: list[tuple[int, Link]], failed: list[int], addresses: list[tuple[int, int]]
) -> None:
    """Put the replicas of one slot in order.

    `links`: the pairs of hands that name it; `addresses`: node and address of each replica that
    was counted in the old view, the primary first; `failed`: the nodes that are lost now.
    """
    endpoint = store.endpoint
    left = [address for node, address in addresses if node not in failed]
    if len(left) == len(addresses) or not left:
        return
    values = [endpoint.load(address) for address in left]
    word = values[0]
    if addresses[0][0] in failed:
        word = chosen(values, lambda value: store.mark_of(value, BIRTH), store.new_number)
        for reference, link in links:
            if link.old and reference != word & REFERENCE_MASK:
                store.logged.mark(reference, DEATH, word)
    for address, value in zip(left, values, strict=True):
        if value != word:
            # CRASH(reconciling): what is left then gives the next leader a choice as good.
            endpoint.store(address, word)
