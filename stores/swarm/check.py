"""Looking at whole registers: checks, and what the dead have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.links import BUFFER, OLD, Link, is_slot
from limpet.stores.swarm.layout import (
    DELETED,
    DONE,
    VERIFIED,
)
from limpet.stores.swarm.words import is_tombstone, row_of, side_of, writer_of

if TYPE_CHECKING:
    from limpet.stores.swarm.key_register import KeyRegister
    from limpet.stores.swarm.quorum import Quorum

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def wrong_with(register: KeyRegister) -> str:
    """What is wrong with the register at hand, or "" if nothing is. Called pinned."""
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
    """Whether a pointer that was read names what nobody has in use, and still does."""
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
    """The named crash points that the hand of a dead client shows of registers."""
    found = set()
    quorum, recycling = store.register.quorum, store.register.recycling
    for reference, home in store.view.hand(ident >> INCARNATION_BITS):
        if Link.of(home).entry != store.number_of_store:
            continue
        if home & BUFFER:
            recycling.visit_home(home)
            found |= _points_of_buffer(quorum, reference, bool(home & OLD))
        elif is_slot(home) and home & OLD and recycling.visit(reference):
            quorum.read_all()
            found |= _points_of_register(quorum)
    for reference in store.slots_taken():
        if recycling.visit(reference):
            quorum.read_all()
            for replica in quorum.replicas:
                tops = [replica.metadata(row) for row in range(quorum.register.buffers)]
                if any(
                    is_tombstone(top) and row_of(top) == ident >> INCARNATION_BITS for top in tops
                ):
                    found.add("entombed")
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
