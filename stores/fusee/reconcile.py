"""The leader's step in a change of the view: put the slots in order that clients were changing.

Algorithm 3 of FUSEE, lines 5 to 7. No client is in the midst of a round (shm/replicas/view.py); all
slots whose replicas may differ are named in client journals. For each that had a replica on a lost
node:

    its primary is still there: all backups get its value. Proposals have no effect
    its primary is lost: all replicas that are left get the value that `chosen` picks from them, and
        the old objects of the round are marked with it. (A delete that others have completed, and
        that has yet to learn it, reads the mark of its own round, not of a later one.)

`chosen` works from the values of the backups. It never undoes a committed change, and never commits
a key twice:
    a frozen word         any of the proposals of the round will do, or it was committed; no client
                          has acted on it unless all have it
    all have one value    it was committed, or may be: a number; an object with a mark in its log
                          entry. An object without one is of an insert that was not decided
    an UPDATED object     the round replaces an object, and was not completed: any of its proposals
                          will do
    a number              the round was made void, or is that of a delete: it will do
    else                  the round fills a vacant slot, and was not completed: it is made void

An insert whose round was voided may have the mark INSERTED and still be on all backups. Then no
client has acted on the voiding, as a client does so only when the backups are cleared. So the
insert counts as decided, and its author finds it linked.
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
    """The value for a slot whose backups have `values`.

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
    replica that was valid in the old view, the primary first; `failed`: the nodes that are lost
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
            # CRASH(reconciling): the values then give the next leader an equally good choice.
            endpoint.store(address, word)
    # ORDER: the marks after the slot, or the next leader might choose another value than the marks.
    tell(store, links, word, decided)


def tell(store: Any, links: list[tuple[int, Link]], word: int, decided: bool) -> None:
    """Write into the log entries of old objects how the round of a slot with `word` has ended.

    An object that is still linked loses its mark: its round was undone. An object with a mark is of
    an earlier round, whose participants may not have looked yet, so the mark stays. `decided`: this
    leader has decided the round, and the others must learn it.
    """
    for reference, link in links:
        if not link.old:
            continue
        if reference == word & OBJECT_MASK:
            # The object of a frozen slot lives on in a half, and the mark is of a round there.
            if not is_frozen(word):
                store.logged.mark(reference, DEATH, 0)
        elif decided and store.mark_of(reference, DEATH) in (0, GONE):
            store.logged.mark(reference, DEATH, word)
    # ORDER: the marks before the view changes, by a word of the control segment: then the parked
    # participants look.
    store.endpoint.wait()
