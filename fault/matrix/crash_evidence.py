"""Crash evidence: the named crash points (`# CRASH(name):`) that a dead client's memory shows.

A survivor looks after the death and before any recovery. It sees a crash point when memory is in
the state that the comment at the crash point describes, in whatever way memory came into that
state.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import numpy as np

from limpet.shm.catalogue.directory import CLAIMED, PLANNED
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, CLIENT_JOURNAL_SIZE, DYING, JOINING, client_id
from limpet.shm.endpoint.words import (
    BACKUP,
    LARGE,
    LARGE_CLASS,
    LINK_MASK,
    OWNER_MASK,
    PENDING,
    REFERENCE_MASK,
    REGION,
    REPLICAS_MAX,
    REPLICATED,
    SLAB,
    STRAY,
    TAIL,
    TAIL_FIRST_MASK,
    TAKEN,
    TENTATIVE,
    block_word,
    replicas_of,
)
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.pool import Pool

UNLINKED: Final = "unlinked"
"""Not a crash point: `seen` reports an object in the journal, in use, whose link names none."""
OWNER: Final = "owner"


def seen(pool: Pool, slot: int, word: int) -> set[str]:
    """The crash points that the dead client of this slot and state word shows.

    Called within `pool.exclusively`. Nothing is changed.
    """
    state = word >> 60
    if state == JOINING:
        return {"joining"}
    found = _in_journal(pool, slot, state == DYING)
    blocks = _in_blocks(pool, client_id(slot, word))
    if state == DYING:
        found.add("dying")
        if OWNER not in blocks:
            found.add("blocks-returned")
    found |= blocks - {OWNER}
    for left in pool.of_stores(lambda store: store.left_by(client_id(slot, word))):
        found |= left
    for directory in (pool.catalogue, *pool.regions.directories):
        for entry in directory:
            if entry.client == client_id(slot, word):
                found |= {
                    CLAIMED: {"claimed-entry"},
                    PLANNED: {"planned-entry"},
                }.get(entry.state, set())
    return found


def _in_journal(pool: Pool, slot: int, dying: bool) -> set[str]:
    words = np.frombuffer(
        pool.endpoint.read(slot_address(slot) + CLIENT_JOURNAL, CLIENT_JOURNAL_SIZE * 16),
        dtype="<u8",
    ).tolist()
    pairs = [
        (ref, link_address)
        for ref, link_address in zip(words[::2], words[1::2], strict=True)
        if ref
    ]
    found = set()
    for reference, link_address in pairs:
        if link_address & REPLICATED:  # its store knows the crash point: `left_by`
            if pool.heap.plausible(reference) and len(set(_used_bits(pool, reference))) == 2:
                found.add("used-in-part")
            # A pair that stands for others is a log, which is never in use
            # (stores/transactions/log.py).
            if (
                dying
                and pool.heap.plausible(reference)
                and not pool.heap.used(reference)
                and not pool.contents.listed(reference, link_address)
            ):
                found.add("settled")
            continue
        link = pool.endpoint.load(link_address) if link_address else 0
        ours = link_address != 0 and not (link ^ reference) & LINK_MASK
        if len(set(_used_bits(pool, reference))) == 2:
            found.add("used-in-part")
        if not pool.heap.used(reference):
            found.add("settled" if dying else "held")
        elif not link_address:
            found.add("held")
        elif ours and link & TENTATIVE:
            found |= {"tentative-link", "inserting"}
        elif not link:
            found.add(UNLINKED)
    if len(pairs) == 2 and pairs[0][1] == pairs[1][1] != 0 and not pairs[0][1] & REPLICATED:
        link = pool.endpoint.load(pairs[0][1])
        if not (link ^ pairs[0][0]) & LINK_MASK:
            found.add("updated")
    return found


def _used_bits(pool: Pool, reference: int) -> Iterator[bool]:
    """The used bits of the object's pages, or its own, on its replicas in service."""
    pages = pool.heap.in_pages(np.array([reference & REFERENCE_MASK], dtype=np.uint64)).tolist()
    for page in pages:
        for k in range(pool.heap.replicas(reference)):
            with contextlib.suppress(NodeFailed):
                yield pool.heap.used_at(page, k)


def _in_blocks(pool: Pool, ident: int) -> set[str]:
    found = set()
    for node in range(pool.parameters.nodes):
        words = pool.blocks.words(node)
        marks = {mark for _, _, mark in pool.regions.extents(node)}
        pending = {block_word(PENDING, ident, LARGE_CLASS, r + 1) for r in range(REPLICAS_MAX)}
        for index, word in enumerate(words.tolist()):
            kind, owner = word >> 60, word & OWNER_MASK
            if kind == REGION and owner not in marks:
                found.add("discarded-region")
            if kind == TAIL and int(words[word & TAIL_FIRST_MASK]) in pending:
                found.add("tails-first")
            if kind == STRAY:
                found.add("stray")
            if kind == PENDING and owner == ident:
                found |= {_of_group(pool, node, index, word), OWNER}
            if kind == SLAB and owner == ident:
                found.add(OWNER)
            if kind == TAKEN and owner == ident:
                found |= {"taken", OWNER}
            if kind == LARGE and owner == ident:
                found.add(OWNER)
                # an object for which there is a span takes more than one block
                if not pool.blocks.tails(words, index) and pool.blocks.unused(node, index, 0):
                    found.add("span-shortened")
    return found


def _of_group(pool: Pool, node: int, block: int, word: int) -> str:
    """The crash point of a dead client's pending block: all of its backups exist, or not all."""
    replicas = replicas_of(word)
    if replicas == 1:
        return "pending-run"
    table = pool.blocks
    there = sum(
        pool.endpoint.load(table.heap.table_word(other, at)) >> 60 == BACKUP
        for other, at in table.groups.backups(node, block, replicas)
        if not table.groups.failed(other)
    )
    whole = there == table.groups.backups_in_service(node, block, word)
    return "replica_set-claimed" if whole else "replica_set-in-part"
