"""Repair after the last holder of a lock, which died or ended with an error (trap L1).

The paper has no repair: a lock whose holder dies is held for ever, and a value that it was writing
never has the right checksum again. Here the client that gets a lock first looks into its journal
(data_array.py), and carries out or takes back the intent in it:

    inserting   an entry with the claim becomes vacant again, and its object, if it has one, is
                freed: it was never valid. If the last message of the lock's tracker names it, it
                was announced, and that it is GONE is announced, too. If it is valid, the insert is
                done
    updating    an entry that is whole is left as it is, old or new. One that is not is written once
                more, from the redo image: no client has read the old value since the first word of
                the new one was there, as nothing was whole; gets may have read the new one, out of
                the redo image
    deleting    an entry that is still valid is left so. One that is not becomes vacant, after its
                key was announced to be GONE, perhaps for the second time

A get that finds an entry torn again and again takes the lock of a dead holder, and so it ends.
`recover` takes every lock whose journal has an intent.

A repairer that dies leaves the journal as it was, for the next one: every step writes the same
again, or is left out. The recovery of the dead client settles its client journal (client.py),
before or after: a new object is linked or freed, and an entry of an update that is not whole links
to the new object already (data_array.py), so the old one is freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import StoreCorrupt
from limpet.stores.loco.layout import (
    CLAIMED,
    DELETED,
    DELETING,
    GONE,
    INSERTING,
    INTENT_MASK,
    INTENT_SHIFT,
    PHASE_MASK,
    ROW_MASK,
    UPDATING,
    VACANT,
    VALID,
)

if TYPE_CHECKING:
    from limpet.stores.loco.lookup import KeyEntry
    from limpet.stores.loco.writer import Writer


def repair(writer: Writer, found: KeyEntry) -> None:
    """Carry out the intent in the lock's journal, or take it back. In an operation, with the lock.

    Raises StoreCorrupt for an impossible journal.
    """
    intent, claim = writer.journal.intent(), writer.journal.claim()
    what, entry = intent & INTENT_MASK, intent >> INTENT_SHIFT
    if what not in (INSERTING, UPDATING, DELETING) or entry >= found.entries.count:
        raise StoreCorrupt(
            f"{writer.lookup.name}: the journal at {writer.journal.at:#x} is damaged: {intent:#x}; "
            "destroy the pool"
        )
    state = writer.endpoint.load(found.entries.address(entry))
    if (state ^ claim) & ~PHASE_MASK == 0:
        phase = state & PHASE_MASK
        if what == INSERTING and phase == CLAIMED:
            message = found.index.last_message(found.lock)
            if message & ROW_MASK == entry:
                found.index.announce(entry, message, GONE)
            # CRASH(repairing): the next holder finds the entry claimed, or vacant.
            _vacate(writer, found, entry, state)
        elif what == UPDATING and phase == VALID:
            _complete(writer, found, entry)
        elif what == DELETING and phase == DELETED:
            found.entries.read(entry)
            found.index.announce(entry, hash64(found.entries.key()), GONE)
            _vacate(writer, found, entry, state)
    writer.journal.end()
    writer.client.settle()


def _vacate(writer: Writer, found: KeyEntry, entry: int, state: int) -> None:
    link = writer.endpoint.load(found.entries.link_address(entry))
    writer.vacate(found, entry, state, link)
    found.index.see(entry, state & ~PHASE_MASK | VACANT)


def _complete(writer: Writer, found: KeyEntry, entry: int) -> None:
    entries = found.entries
    entries.read(entry)
    if entries.is_whole():
        return
    link = entries.link()
    writer.journal.load(entries)
    if not entries.is_whole() or entries.link() != link:
        raise writer.lookup.damaged(found, entry)
    entries.write(entry, entries.entry_words, link)
