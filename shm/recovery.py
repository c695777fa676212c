"""Recovery of a dead client: its journal, its blocks and its slot.

Steps, in this order; each is idempotent, and any number of recoverers may be at any of them:
    1. pin, as in every operation; wait until no node is being filled (view.py)
    2. LIVE -> DYING; a client that finds DYING carries on
    3. move our pin back to the dead client's, read its client journal, then its state word again:
       if the word has not changed, this is that client's journal, and its objects do not change
       until we unpin
    4. resolve each object of the client journal (`Heap.settle`), then let go what its records hold
       (holds.py)
    5. take the client's blocks from it (blocks.py)
    6. DYING -> FREE: from here on its pin no longer counts

A recoverer that is killed leaves DYING. A recoverer that stands still between two steps does no
harm when it goes on: its CASes carry the dead client's id, and its pin keeps the objects of step 4
unchanged. A client that leaves of its own accord returns its blocks while it is LIVE, and then its
slot.

A process that alone has lost the memory of a node (a bad page) cannot give back blocks there. Then
the slot stays DYING, so that the dead client's id still names the owner of these blocks, and a
client that has the memory carries on. A client that is DYING counts as dead for all clients,
whether its process lives or not.

This module does not recover directory entries that the client was making: the next creator takes
them over (directory.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from limpet.shm.clients.client import DAMAGE
from limpet.shm.clients.holds import let_go
from limpet.shm.clients.membership import journal_then
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import (
    CHANGES,
    DYING,
    ERA,
    INCARNATION_MASK,
    LIVE,
    PIN,
    RECORDS,
    RECORDS_COUNT,
    client_id,
    state_word,
)
from limpet.shm.endpoint.states import LOSS_MET
from limpet.shm.endpoint.words import REFERENCE_MASK, REPLICATED
from limpet.shm.errors import NodeFailed, PoolClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.alloc.blocks import BlockTable
    from limpet.shm.catalogue.regions import Regions
    from limpet.shm.clients.client import Client
    from limpet.shm.clients.epoch import Grace


def recover_client(
    client: Client,
    blocks: BlockTable,
    regions: Regions,
    grace: Grace,
    slot: int,
    word: int,
    lap: Callable[[str], None] = lambda step: None,
) -> dict[str, int]:
    """Recover the client of `slot` and state word `word`, which is dead.

    `lap` is called with the name of each step when it is done: "journal", "objects", "blocks",
    "slot".

    Returns how many objects and blocks were given back, and `clients`: 1 when this client did the
    last step, 0 when another recoverer had done it.
    """
    endpoint = client.endpoint
    at = slot_address(slot)
    pid, incarnation = word >> 36 & 0xFFFFFF, word & INCARNATION_MASK
    dying = state_word(DYING, pid, incarnation)
    counts = {"clients": 0, "objects": 0, "blocks": 0}
    scope = endpoint.background(True)
    met_loss = endpoint.met_loss
    try:
        client.pin()
        # ORDER: pinned before we look: then no node is filled, nor bits copied, until we are done.
        client.wait_stable()
        endpoint.cas(at, state_word(LIVE, pid, incarnation), dying)
        # CRASH(dying): the next client that sweeps carries on.
        # ORDER: the era before the pin, as in epoch.py.
        era, pin = endpoint.load_all((at + ERA, at + PIN))
        client.share_pin(pin, era)
        # ORDER: our pin is as old as the dead client's before we see that its own still counts.
        journal, found = journal_then(endpoint, slot)
        if found != dying:
            return counts  # another client has finished
        lap("journal")
        if endpoint.durable:
            # ORDER: links that the dead client changed persist before an object is freed.
            for _, link_address in journal:
                if not link_address & REPLICATED:
                    endpoint.dirty(link_address, 8)
            endpoint.persist()
        for reference, link_address in journal:
            counts["objects"] += _settle(client, reference, link_address)
            # CRASH(settled): the next client repeats it, while the dead client's pin stands.
        records = range(at + RECORDS, at + RECORDS + 8 * RECORDS_COUNT, 8)
        *held_words, changes = endpoint.load_all((*records, at + CHANGES))
        for record, held in zip(records, held_words, strict=True):
            counts["objects"] += held != 0 and _let_go(client, record)
            # A kill here leaves the other records to the next client.
        lap("objects")
        returned, complete = _return_blocks(blocks, regions, grace, client_id(slot, word))
        counts["blocks"] += returned
        lap("blocks")
        if not complete:
            return counts
        if changes & 1:
            # ORDER: all that it left is decided; by a CAS, as another recoverer may be late.
            endpoint.cas(at + CHANGES, changes, changes + 1)
        counts["clients"] = int(endpoint.cas(at, dying, incarnation) == dying)
    finally:
        # All that we cannot mend here stays the dead client's: it is no change of our own.
        endpoint.met_loss = max(met_loss, min(endpoint.met_loss, LOSS_MET))
        client.unpin()
        endpoint.background(scope)
    lap("slot")
    return counts


def _return_blocks(
    blocks: BlockTable, regions: Regions, grace: Grace, ident: int
) -> tuple[int, bool]:
    """Take a client's blocks from it; how many were given back, and whether none is left."""
    returned, complete = 0, True
    for node in range(regions.nodes):
        try:
            returned += blocks.recover(node, ident, grace, regions.region_of)
            # CRASH(blocks-returned): the rest are found by the dead client's id in their words.
        except NodeFailed:
            # The blocks are gone with the node, if it is lost for all clients.
            complete = complete and blocks.vanished(node)
        # Of a node with a poisoned page we can read, but not mend, what the client has left.
        if blocks.endpoint.lost(node) and not blocks.vanished(node):
            complete = False
    return returned, complete


def _settle(client: Client, reference: int, link_address: int) -> bool:
    """Resolve a pair of a dead client's journal, if it is possible; damage must not stop us."""
    if not link_address & REPLICATED and not client.heap.plausible(reference):
        return False
    try:
        return bool(client.heap.settle(reference, link_address))
    except DAMAGE:  # a node that the pool does not have, say
        return False


def _let_go(client: Client, record: int) -> bool:
    """Let go what a dead client's record holds; damage must not stop us."""
    word = client.endpoint.load(record)
    if not word or not client.heap.plausible(word & REFERENCE_MASK):
        return False
    return let_go(client, record)


def release_client(
    client: Client,
    blocks: BlockTable,
    regions: Regions,
    grace: Grace,
    is_stable: Callable[[], bool],
) -> None:
    """Give back all that this client has, and its slot, for good, without waiting.

    Memory that cannot be given back now is left, with the slot, to the next client that sweeps;
    while a node is being filled (`is_stable` returns False), this is all of it.
    """
    endpoint = client.endpoint
    complete = False
    scope = endpoint.background(True)
    try:
        client.pin()
        # ORDER: pinned before we look, as above: a backup that is filled now would be left.
        # Nodes that cannot be mapped any more, or whose handle is gone, are left alone.
        stable = True
        with contextlib.suppress(NodeFailed, PoolClosed):
            stable = is_stable()
        # what the client holds is let go by the next client that sweeps
        if stable and not client.holds.count:
            _, complete = _return_blocks(blocks, regions, grace, client.ident)
    finally:
        # CRASH(leaving): LIVE, its process dead; recovered like any other.
        client.quit(complete)
        endpoint.background(scope)
