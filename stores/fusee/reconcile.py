"""What the leader of a change of the view does with the slots that a client was changing.

Algorithm 3 of FUSEE, lines 5 to 7. No client is in the midst of a round (shm/replicas/view.py); all
slots whose replicas may differ are named in client journals. For each that had a replica on a lost
node:

    its primary is still there: all backups get what it has. What was proposed is not in force
    its primary is lost: all replicas that are left get what `chosen` picks from them, and the old
        objects of the round are marked with it. (A delete that was completed by others, and does
        not know it yet, goes by the mark of its round, not of a later one.)

`chosen`, from what the backups had, never undoes what was committed, and never commits a key twice:
    a frozen word         any of the proposals of the round will do, or it was committed; no client
                          has acted on it unless all have it
    all have one value    it was committed, or may be: a number; an object with a mark in its log
                          entry. An object without one is of an insert that was not decided
    an UPDATED object     the round was that of an object, and not completed: any of its proposals
                          will do
    a number              the round was made void, or is that of a delete: it will do
    else                  the round fills a vacant slot, and was not completed: it is made void

An insert whose round was voided may have the mark INSERTED and still be on all backups. Then no
client has acted on its being void, since one must have seen it cleared from the backups for that;
so it is in force, and its author, when it looks, finds it linked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.stores.fusee.links import Link
from limpet.stores.fusee.marks import BIRTH, DEATH, GONE, UPDATED
from limpet.stores.race.index import is_frozen, is_vacant
from limpet.stores.race.layout import OBJECT_MASK

if TYPE_CHECKING:
    from collections.abc import Callable


def chosen(values: list[int], birth: Callable[[int], int], number: Callable[[], int]) -> int:
    """What a slot shall have whose backups have `values`.

    `birth`: the mark of the object in a word; `number`: a new word for a vacant slot.
    """
    for value in values:
        if is_frozen(value):
            return value
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

    `links`: the pairs of client journals that name it; `addresses`: node and address of each
    replica that was counted in the old view, the primary first; `failed`: the nodes that are lost
    now.
    """
    endpoint = store.endpoint
    left = [address for node, address in addresses if node not in failed]
    if len(left) == len(addresses) or not left:
        return
    values = [endpoint.load(address) for address in left]
    decided = addresses[0][0] in failed
    word = values[0]
    if decided:
        word = chosen(values, lambda value: store.mark_of(value, BIRTH), store.new_number)
    for address, value in zip(left, values, strict=True):
        if value != word:
            # CRASH(reconciling): what is left then gives the next leader a choice as good.
            endpoint.store(address, word)
    # ORDER: the marks after the slot, or the next leader might choose otherwise than they say.
    tell(store, links, word, decided)


def tell(store: Any, links: list[tuple[int, Link]], word: int, decided: bool) -> None:
    """Have the log entries of old objects say how the round of a slot has ended that has `word`.

    An object that is still linked loses its mark: its round was undone. One that has a mark is of
    an earlier round, whose participants may not have looked yet, so the mark stays. `decided`: by
    us, and the others are to be told.
    """
    for reference, link in links:
        if not link.old:
            continue
        if reference == word & OBJECT_MASK:
            # Of a frozen slot, it lives on in a half, and the mark is of a round there.
            if not is_frozen(word):
                store.logged.mark(reference, DEATH, 0)
        elif decided and store.mark_of(reference, DEATH) in (0, GONE):
            store.logged.mark(reference, DEATH, word)
