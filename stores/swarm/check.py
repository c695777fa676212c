"""Looking at whole registers: checks, what the dead have left, replicas on replaced nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.states import IN_SERVICE
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.links import BUFFER, OLD, Link, is_slot
from limpet.stores.status import VACANT_CLASS
from limpet.stores.swarm.layout import (
    DELETED,
    DONE,
    HEADER,
    READ,
    STAMP_SHIFT,
    VERIFIED,
    WRITE,
)
from limpet.stores.swarm.words import is_tombstone, row_of, side_of, stamp_of, writer_of

if TYPE_CHECKING:
    from limpet.stores.swarm.safe_guess import SafeGuess

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def wrong_with(register: SafeGuess) -> str:
    """What is wrong with the register that was turned to, or "" if nothing is. Called pinned."""
    register.read_all()
    for k in range(register.replicas):
        ident = register.word(k, 0)
        if not ident:
            continue  # its node is lost, or it is being given up
        if ident != register.ident:
            return f"replica {k} of the register has the ident {ident:#x}, not {register.ident:#x}"
        if register.word(k, 1) != register.capacity:
            return f"replica {k} of the register has room for {register.word(k, 1)} bytes in place"
        for index in range(2, 2 + register.buffers):
            word = register.word(k, index)
            if max(writer_of(word), row_of(word)) >= register.writers:
                return f"replica {k} of the register has the tuple {word:#x}, which cannot be"
        for row in range(register.writers):
            for side in range(2):
                if _dangles(register, k, row, side):
                    return f"replica {k} of the register names a buffer that is not in use"
    outcome = register.get_value()
    return "" if outcome in (DONE, DELETED) else "its register cannot be read"


def _dangles(register: SafeGuess, k: int, row: int, side: int) -> bool:
    """Whether a pointer that was read names what nobody has in use, and still does."""
    reference = register.named(k, row, side)
    if not reference or (register.heap.plausible(reference) and register.heap.used(reference)):
        return False
    try:
        return bool(register.endpoint.load(register.pointer(k, row, side)) == reference)
    except NodeFailed:
        return False


def points_of(store: Any, ident: int) -> set[str]:
    """The named crash points that the hand of a dead client shows of registers."""
    found = set()
    register = store.register
    for reference, home in store.view.hand(ident >> INCARNATION_BITS):
        if Link.of(home).entry != store.number_of_store:
            continue
        if home & BUFFER:
            register.visit_home(home)
            found |= _points_of_buffer(register, reference, bool(home & OLD))
        elif is_slot(home) and home & OLD and register.visit(reference):
            register.read_all()
            found |= _points_of_register(register)
    for reference in store.slots_taken():
        if register.visit(reference):
            register.read_all()
            for k in range(register.replicas):
                tops = [register.word(k, 2 + g) for g in range(register.buffers)]
                if any(
                    is_tombstone(top) and row_of(top) == ident >> INCARNATION_BITS for top in tops
                ):
                    found.add("entombed")
    return found


def _points_of_buffer(register: SafeGuess, reference: int, old: bool) -> set[str]:
    register.read_all()
    found = set()
    named = False
    for k in range(register.replicas):
        for row in range(register.writers):
            for side in range(2):
                if register.named(k, row, side) == reference:
                    named = True
                    top = register.word(k, 2 + row % register.buffers)
                    if (row_of(top), side_of(top)) != (row, side):
                        found |= set() if old else {"pointer"}
                    else:
                        found |= {"put", "verified"} if top & VERIFIED else {"put"}
    return found if named or not old else {"emptied"}


def _points_of_register(register: SafeGuess) -> set[str]:
    idents = [register.word(k, 0) for k in range(register.replicas)]
    return set() if all(idents) else {"register-given-up"}


def level(register: SafeGuess, reference: int, node: int) -> None:
    """Give a register's replica on a node that is being filled the most that any replica has.

    All others are parked. It was copied from one replica, which may not have been of the majority
    that has the last tuple; with what is left of that, it is of any majority now.
    """
    if not register.visit(reference):
        return
    new = (node - (reference >> NODE_SHIFT & 0xFF)) % register.nodes
    if new >= register.replicas:
        return
    register.read_all()
    there = [k for k in range(register.replicas) if register.word(k, 0)]
    if new not in there:
        return
    _require_service(register, there)
    register.ident = register.word(new, 0)
    register.capacity = register.word(new, 1)
    words = [max(register.word(k, 2 + g) for k in there) for g in range(register.buffers)]
    for row in range(register.writers):
        for side in range(2):
            words.append(_pointer(register, there, row, side))
    for at, reference in enumerate(words[register.buffers :]):
        if reference >> 48 & 0xFF != VACANT_CLASS:
            top = words[at // 2 % register.buffers]
            leads = (row_of(top), side_of(top)) == divmod(at, 2)
            wanted = stamp_of(top) << STAMP_SHIFT if leads else 0
            _copy_buffer(register, there, reference & REFERENCE_MASK, new, wanted)
    register.endpoint.write(register.address(new) + 16, np.array(words, dtype="<u8"))
    locks = [_lock(register, there, writer) for writer in range(register.writers)]
    register.endpoint.write(register.lock(new, 0), np.array(locks, dtype="<u8"))


def _require_service(register: SafeGuess, there: list[int]) -> None:
    """Raise NodeFailed when one of the other replicas was lost just now: all begins anew."""
    for k in range(register.replicas):
        if k not in there:
            try:
                register.endpoint.load(register.address(k))
            except NodeFailed as error:
                if register.view.states()[error.node] == IN_SERVICE:
                    raise


def _pointer(register: SafeGuess, there: list[int], row: int, side: int) -> int:
    """What a pointer has: on the replica where the greatest tuple leads to it, or on any."""
    found = register.ident
    best = -1
    for k in there:
        word = register.word(k, 2 + register.buffers + 2 * row + side)
        top = register.word(k, 2 + row % register.buffers)
        leads = top if (row_of(top), side_of(top)) == (row, side) else 0
        if word != register.ident and leads > best:
            best, found = leads, word
    return found


def _copy_buffer(
    register: SafeGuess, there: list[int], reference: int, new: int, wanted: int
) -> None:
    """Copy a buffer, from a replica that has its value, to that beside replica `new`.

    `wanted`: the stamp of the tuple that leads to it, or 0. Others may have what was in the same
    memory before, of an older write of the same register, or the value with a later stamp already.
    A buffer from when the register's first node was lost has no replica beside that node's. But the
    tuple counts there from now on: so its value is written wherever it may be.
    """
    found: dict[int, bytes] = {}
    lacking = []
    room = register.heap.value_max(register.replicas) - HEADER
    for k in there:
        source = register.beside(reference, k)
        if k == new or not source:
            continue
        header = register.endpoint.read(source, HEADER)
        stamp, ident, length, digest = np.frombuffer(header, dtype="<u8").tolist()
        if ident == register.ident and length <= room:
            value = register.endpoint.read(source + HEADER, length)
            if hash64(value, (stamp + ident + length) & MASK) == digest:
                found[stamp] = header + value
                if stamp >= wanted:
                    continue
        lacking.append(source)
    target = register.beside(reference, new)
    if target and found:
        register.endpoint.write(target, found.get(wanted) or found[max(found)])
    elif wanted in found:
        for address in lacking:
            register.endpoint.write(address, found[wanted])


def _lock(register: SafeGuess, there: list[int], writer: int) -> int:
    """The lock word with the highest timestamp; with both modes if replicas differ in that.

    Then neither READ nor WRITE succeeds any more that has not already, at those two replicas.
    """
    words = [register.endpoint.load(register.lock(k, writer)) for k in there]
    highest = max(stamp_of(word) for word in words)
    modes = 0
    for word in words:
        if stamp_of(word) == highest:
            modes |= word & (READ | WRITE)
    return highest << STAMP_SHIFT | modes
