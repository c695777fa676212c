"""Where every byte of a pool's memory nodes is: reachable, free, reserved, held, leaked, failed.

    reachable  objects in use that some store links to
    free       free blocks; objects not in use in blocks that a client has, or that may be adopted
    reserved   superblocks, directories, tables, bitmaps, named regions, rounding in blocks
    held       objects in use and not linked that a living client has in its client journal; blocks
               being claimed; objects that moved from one place to another while we looked
    leaked     memory that no client will ever find again, and that of a dead client until recovery;
               named regions that belong to no store
    failed     nodes that are lost; of a node of which this process has met poisoned pages, the
               objects that are linked and on them, what of named regions is on them, and what is
               not linked, as its link may be on them. So, too, all that is not linked while a node
               is lost of a pool to which nodes were added (shm/growth.py): links lead to others

Clients may be at work meanwhile, and a look is no snapshot. It reads, in this order, the blocks and
used bits, the client journals, the links, the client journals again, and the bits of the objects
that were found nowhere. An object in use is linked, or in a client journal: that of the client that
links it, until it is linked; and that of the client that unlinks it, from before it is unlinked
until its bit is cleared. So if its bit is set at the end as at the beginning, and it was in no
client journal either time, it was linked all the while between, and was found.

This assumes that the bit was not cleared and set again. No client can do that while the auditor is
pinned, since memory that is freed then is not used again (epoch.py). So the auditor looks again,
under a pin, at the objects that seem leaked, and reports only those that are found nowhere then
either. The pin's counter goes on meanwhile, so that no client in need of memory takes the auditor
for a stopped client.

An object that is a run of pages (slabs.py) counts as one object for each of its pages.

A backup (replica_sets.py) counts on its own node, by its own used bits, as objects of its primary:
an object with three replicas counts three times its bytes, and a bit that only one replica has set
can leak, too.

A store that moves its links may hide an object from one such look. Hence there are some more, each
after every operation that ran during the last one has ended.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK, page_offset, slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS, RECORDS, RECORDS_COUNT, client_id
from limpet.shm.endpoint.words import (
    BACKUP,
    FREE,
    LARGE,
    LARGE_CLASS,
    LIMBO,
    OWNER_MASK,
    PENDING,
    REFERENCE_MASK,
    REGION,
    REPLICATED,
    SLAB,
    STRAY,
    TAIL,
    TAIL_CLASS,
    TAIL_FIRST_MASK,
    TAKEN,
    class_of,
    replica_bits,
    replicas_of,
)
from limpet.shm.errors import AddressError, NodeFailed

if TYPE_CHECKING:
    from limpet.shm.alloc.blocks import BlockTable
    from limpet.shm.arrays import Flags, Words
    from limpet.shm.catalogue.regions import Regions
    from limpet.shm.clients.client import Client
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.clients.membership import Membership
    from limpet.shm.contents import Contents

_BACKUPS: Final = (BACKUP, STRAY)
_HOLDERS: Final = (SLAB, LARGE, TAKEN, LIMBO, *_BACKUPS)
_PRIMARIES: Final = (PENDING, LARGE, TAKEN, LIMBO)
log: Final = logging.getLogger("limpet")
TOLD_MAX: Final = 16
LOOKS_MAX: Final = 3
"""Looks under a pin; objects that are found in none of them are leaked."""
HELD, SOUND, ASTRAY = range(3)
Suspect = tuple[int, int, int]
"""A reference, or the address of a block's word; its bytes; which replica."""
KEYS: Final = ("total", "reachable", "free", "reserved", "held", "leaked", "failed")


class Audit:
    """One audit of a pool, whose `contents` know what stores link to.

    While a store is being dropped, its objects are not linked any more, and count as held until
    they are free.
    """

    def __init__(
        self,
        blocks: BlockTable,
        regions: Regions,
        grace: Grace,
        membership: Membership,
        client: Client,
        contents: Contents,
    ) -> None:
        self.blocks = blocks
        self.heap = blocks.heap
        self.regions = regions
        self.grace = grace
        self.membership = membership
        self.client = client
        self.endpoint = blocks.endpoint
        self.contents = contents
        self.in_regions = np.empty(0, dtype=np.uint64)
        """References to the objects that named regions lie in, of the last look."""
        self.block_size = blocks.heap.layout.block_size

    def run(self) -> dict[str, int]:
        """Bytes by category (`KEYS`); all but `total` add up to `total`."""
        found, suspects = self._scan()
        for _ in range(LOOKS_MAX):
            if not suspects:
                break
            self._let_operations_end()
            self.client.pin()
            try:
                found, again = self._scan()
            finally:
                self.client.unpin()
            suspects &= again
        if suspects and self.contents.emptying():
            suspects = set()
        leaked = sum(size for _, size, _ in suspects)
        unowned = self._unowned()
        if suspects or unowned:
            self._tell(suspects, unowned)
        found["held"] += found["leaked"] - leaked
        found["reserved"] -= sum(unowned.values())
        found["leaked"] = leaked + sum(unowned.values())
        return found

    def _unowned(self) -> dict[str, int]:
        """The bytes of the regions that belong to no store, by their names."""
        found = {}
        for node, entry, reference in self.regions.unowned(self.contents.homes):
            with contextlib.suppress(NodeFailed):
                size = self.regions.blocks_of(node, entry) * self.block_size
                if reference:
                    pages = self.heap.in_pages(np.array([reference], dtype=np.uint64)).tolist()
                    size = sum(self.heap.sizes[page >> 48 & 0xFF] for page in pages)
                found[f"region {entry.name!r} of node {node}"] = size
        return found

    def free_unreachable(self) -> int:
        """Free the objects that `run` calls leaked, but for those of dead clients; how many."""
        _, suspects = self._scan()
        for looks in range(LOOKS_MAX, 0, -1):
            if not suspects:
                break
            self._let_operations_end()
            self.client.pin()
            try:
                # ORDER: no node is being filled, and used bits copied, until these are cleared.
                self.client.wait_stable()
                suspects &= self._scan()[1]
                if looks == 1:
                    found = {at for at, _, _ in suspects if not self._is_block(at)}
                    # ORDER: under the pin of the last look, so none of them is used anew by now.
                    return self._free(found - self._in_all_journals())
            finally:
                self.client.unpin()
        return 0

    def _free(self, references: set[int]) -> int:
        for count, reference in enumerate(references):
            if not count & 0xFF:
                self.client.go_on()
            self.heap.free(reference)
        return len(references)

    def strays(self) -> list[int]:
        """References to objects that no store links to and no client has in the client journal, the
        dead included.

        For a leader, with all others parked: so one look is enough. No client can use these objects
        if every store could be read.
        """
        _, suspects = self._scan()
        found = {at for at, _, _ in suspects if not self._is_block(at)}
        return sorted(found - self._in_all_journals())

    def _in_all_journals(self) -> set[int]:
        """References in the client journals of all clients, the dead included."""
        named: set[int] = set()
        for slot, _ in self.membership.occupied():
            named.update(reference & REFERENCE_MASK for reference in self._in_journal(slot))
        return set(self.heap.in_pages(np.array(sorted(named), dtype=np.uint64)).tolist())

    def _tell(self, leaks: set[Suspect], unowned: dict[str, int]) -> None:
        """Log where the first leaks are, in one line: regions, blocks with their words, objects.
        And that dead clients have to be recovered, if there are some."""
        places = [f"{size} in {region}, of no store" for region, size in unowned.items()]
        for at, size, k in sorted(leaks)[:TOLD_MAX]:
            node, is_block = at >> NODE_SHIFT & 0xFF, self._is_block(at)
            block = self._block_of(at) if is_block else self.heap.block_of(at)
            object_ = "" if is_block else f", object {self.heap.index_of(at)}, replica {k}"
            with contextlib.suppress(NodeFailed):
                word = self.endpoint.load(self.heap.table_word(node, block))
                places.append(f"{size} at node {node}, block {block} ({word:#018x}){object_}")
        if len(leaks) > TOLD_MAX:
            places.append(f"and {len(leaks) - TOLD_MAX} more")
        dead = sum(self.membership.dead(*place) for place in self.membership.occupied())
        hint = (
            f". Until dead clients ({dead} here) are recovered, by pool.recover() or `limpet "
            "watch`, their memory counts as leaked"
        )
        log.warning(
            "%s: %d bytes leaked: %s%s",
            self.membership.pool, sum(size for _, size, _ in leaks) + sum(unowned.values()),
            "; ".join(places),
            hint if dead else "",
        )  # fmt: skip

    def _is_block(self, at: int) -> bool:
        """Whether it is the address of a block's word, not a reference.

        A reference has a size class or, that of a span, lies among the blocks.
        """
        return at >> 48 == 0 and at & OFFSET_MASK < self.heap.blocks

    def _let_operations_end(self) -> None:
        epoch = self.grace.close_period()
        attempt = 0
        # What a dead client was at does not go on before it is recovered.
        while any(
            not self.membership.dead(laggard.slot, laggard.word)
            for laggard in self.grace.laggards(epoch)
        ) and not self.membership.overdue("audit", epoch):
            attempt += 1
            self.endpoint.pause(attempt)

    def _scan(self) -> tuple[dict[str, int], set[Suspect]]:
        found = dict.fromkeys(KEYS, 0)
        suspects: set[Suspect] = set()
        # ORDER: used bits and blocks, client journals, links, and then client journals and bits of
        # the suspects again.
        nodes = [self._read_node(node) for node in range(self.regions.nodes)]
        live, held = self._journals()
        held = self.heap.in_pages(held)
        reachable = self.heap.in_pages(np.unique(self.contents.references()))
        self.in_regions = self.heap.in_pages(np.unique(self.regions.references()))
        self.client.go_on()
        links_lost = None in nodes and len(self.heap.placement.rings) > 1
        for node, contents in enumerate(nodes):
            found["total"] += self.heap.layout.node_size
            if contents is None:
                found["failed"] += self.heap.layout.node_size
            elif links_lost or self.endpoint.lost(node):  # what is not linked may be linked there
                here = dict.fromkeys(KEYS, 0)
                self._account(node, contents, live, held, reachable, here, set())
                here["failed"] += here.pop("leaked")
                for name, size in here.items():
                    found[name] += size
            else:
                self._account(node, contents, live, held, reachable, found, suspects)
        return found, self._confirmed(suspects) if suspects else suspects

    def _confirmed(self, suspects: set[Suspect]) -> set[Suspect]:
        """Those of the suspects that are found nowhere now either."""
        in_journals = set(self.heap.in_pages(self._journals()[1]).tolist())
        confirmed: set[Suspect] = set()
        for at, size, k in suspects:
            if not len(confirmed) & 0xFF:
                self.client.go_on()
            try:
                is_block = self._is_block(at)
                if (
                    self._astray(at)
                    if is_block
                    else at not in in_journals and self.heap.used_at(at, k)
                ):
                    confirmed.add((at, size, k))
            except NodeFailed:
                continue  # it went with its node
        return confirmed

    def _astray(self, at: int) -> bool:
        """Whether the block with its word at `at` belongs to no region, span or primary."""
        word = self.endpoint.load(at)
        kind, owner = word >> 60, word & OWNER_MASK
        node, offset = at >> NODE_SHIFT, at & OFFSET_MASK
        if kind == TAIL:
            # ORDER: the tail, its first block, the tail again: a tail is given back before that.
            first = self.heap.table_word(node, word & TAIL_FIRST_MASK)
            primary = self.endpoint.load(first) if first & OFFSET_MASK < offset else 0
            astray = primary >> 60 not in _PRIMARIES or not self._lives(primary)
        elif kind == REGION:
            astray = owner not in {mark for _, _, mark in self.regions.extents(node)}
        elif kind in _BACKUPS:
            owning = self._owning_word(node, self._block_of(at), word)
            astray = owning is not None and not self._lives(owning)
        elif kind in _HOLDERS:
            astray = self._damaged(node, self._block_of(at), word) or not self._lives(word)
        else:
            astray = kind > STRAY or (kind == PENDING and not self._lives(word))
        return astray and self.endpoint.load(at) == word

    def _block_of(self, at: int) -> int:
        """The block with its word at that address."""
        return ((at & OFFSET_MASK) - self.heap.layout.block_table) // 8

    def _owning_word(self, node: int, block: int, word: int) -> int | None:
        """The word that names the owner of a BACKUP or STRAY; FREE if none does, None: its primary
        is lost.

        For a backup of a tail it is the word of the first block of the span.
        """
        replica_sets = self.blocks.groups
        primary = replica_sets.primary_of(node, block, word)
        if primary is None:
            return FREE
        try:
            found = replica_sets.primary_word(primary, word)
            if found >> 60 == TAIL:
                first = found & TAIL_FIRST_MASK
                found = (
                    replica_sets.primary_word((primary[0], first), word)
                    if first < primary[1]
                    else FREE
                )
            return found if word >> 60 == BACKUP else FREE
        except NodeFailed:
            return None

    def _lives(self, word: int) -> bool:
        """Whether the block of that word has a living owner, or none that matters."""
        ident = word & OWNER_MASK
        if word >> 60 == LIMBO:
            return True
        if word >> 60 not in _HOLDERS and word >> 60 != PENDING:
            return False
        if ident == 0:
            return True
        slot = ident >> INCARNATION_BITS
        if slot >= self.membership.parameters.clients:
            return False
        state = self.endpoint.load(slot_address(slot))
        return client_id(slot, state) == ident and not self.membership.dead(slot, state)

    def _read_node(self, node: int) -> tuple[Words, dict[int, Words], set[int]] | None:
        try:
            words = self.blocks.words(node)
            used = {}
            self.client.go_on()
            for block in np.flatnonzero(np.isin(words >> np.uint64(60), _HOLDERS)).tolist():
                if self._damaged(node, block, int(words[block])):
                    continue  # will count as leaked
                bits = self.blocks.bitmap(node, block, class_of(int(words[block])))
                used[block] = np.flatnonzero(
                    np.unpackbits(bits.view(np.uint8), bitorder="little")
                ).astype(np.uint64)
            return words, used, {mark for _, _, mark in self.regions.extents(node)}
        except NodeFailed:
            return None

    def _damaged(self, node: int, block: int, word: int) -> bool:
        """Whether the word of a block with objects cannot be."""
        kind, size_class = word >> 60, class_of(word)
        fits = {
            SLAB: size_class != LARGE_CLASS and size_class == self.heap.block_class(size_class),
            LARGE: size_class == LARGE_CLASS,
        }
        possible = kind in _BACKUPS or self.blocks.groups.possible(node, block, word)
        return size_class >= self.heap.class_count or not possible or not fits.get(kind, True)

    def _journals(self) -> tuple[set[int], Words]:
        """Ids of the living clients, and the references in their client journals."""
        live: set[int] = set()
        held: list[int] = []
        for slot, word in self.membership.occupied():
            if not self.membership.dead(slot, word):
                live.add(client_id(slot, word))
                held += self._in_journal(slot)
        return live, np.array(sorted(r & REFERENCE_MASK for r in held if r), dtype=np.uint64)

    def _in_journal(self, slot: int) -> list[int]:
        """The references in a client's journal, those that its pairs stand for, and those in its
        records (holds.py)."""
        # ORDER: the records before and after the journal: objects move in both directions.
        found = self._in_records(slot)
        for reference, link_address in journal_of(self.endpoint, slot):
            found.append(reference)
            if link_address & REPLICATED:
                found += self._listed(reference, link_address)
        return found + self._in_records(slot)

    def _in_records(self, slot: int) -> list[int]:
        at = slot_address(slot) + RECORDS
        words = [self.endpoint.load(at + 8 * record) for record in range(RECORDS_COUNT)]
        return [word & REFERENCE_MASK for word in words if word]

    def _listed(self, reference: int, link_address: int) -> list[int]:
        try:
            return self.contents.listed(reference, link_address)
        except (NodeFailed, AddressError):
            return []

    def _account(
        self,
        node: int,
        contents: tuple[Words, dict[int, Words], set[int]],
        live: set[int],
        held: Words,
        reachable: Words,
        found: dict[str, int],
        suspects: set[Suspect],
    ) -> None:
        words, used, marks = contents
        layout = self.heap.layout
        found["reserved"] += layout.node_size - layout.block_count * layout.block_size

        block = 0
        while block < self.blocks.count:
            word = int(words[block])
            kind, owner = word >> 60, word & OWNER_MASK
            length = 1
            standing = self._standing(node, block, word, live)
            if kind == FREE:
                found["free"] += self.block_size
            elif kind == REGION and owner in marks:
                gone = self._lost_bytes(node, block)
                found["failed"] += gone
                found["reserved"] += self.block_size - gone
            elif standing == HELD or (
                kind == TAIL and self._is_being_made(words, word & TAIL_FIRST_MASK, live)
            ):
                found["held"] += self.block_size
            elif standing == SOUND and block in used:
                if class_of(word) == LARGE_CLASS:
                    length += self._tails(words, block)
                self._account_objects(
                    self._primary_of(node, block, word),
                    length,
                    word,
                    used[block],
                    held,
                    reachable,
                    found,
                    suspects,
                )
            else:
                found["leaked"] += self.block_size
                suspects.add((self.heap.table_word(node, block), self.block_size, 0))
            block += length

    def _standing(self, node: int, block: int, word: int, live: set[int]) -> int:
        """Whether a block with objects, or a pending one, has a living owner or is being made."""
        kind, owner = word >> 60, word & OWNER_MASK
        if kind == PENDING:
            return HELD if owner in live else ASTRAY
        if kind not in _BACKUPS:
            return SOUND if owner == 0 or owner in live or kind == LIMBO else ASTRAY
        owning = self._owning_word(node, block, word)
        if owning is None:
            return SOUND
        if not self._lives(owning):
            return ASTRAY
        # A backup of a tail counts with the first of its span; met alone, it has come just now.
        return HELD if owning >> 60 == PENDING or class_of(word) == TAIL_CLASS else SOUND

    def _primary_of(self, node: int, block: int, word: int) -> tuple[int, int, int]:
        """Node and block of the objects' first replica, and which replica this is."""
        if word >> 60 not in _BACKUPS:
            return node, block, 0
        return self.heap.placement.primary(node, block, replicas_of(word)) or (node, block, 0)

    @staticmethod
    def _is_being_made(words: Words, first: int, live: set[int]) -> bool:
        """Whether block `first` is pending, and its span so being made by a living client."""
        word = int(words[first]) if first < len(words) else 0
        return word >> 60 == PENDING and word & OWNER_MASK in live

    def _tails(self, words: Words, first: int) -> int:
        backups = int(words[first]) >> 60 in _BACKUPS
        return (self.blocks.groups if backups else self.blocks).tails(words, first)

    def _account_objects(
        self,
        primary: tuple[int, int, int],
        length: int,
        word: int,
        used: Words,
        held: Words,
        reachable: Words,
        found: dict[str, int],
        suspects: set[Suspect],
    ) -> None:
        """Account for the objects in use of `length` blocks with this word; as `primary`."""
        node, block, k = primary
        size_class = class_of(word)
        count = self.heap.object_count(size_class)
        size = (
            length * self.block_size if size_class == LARGE_CLASS else self.heap.sizes[size_class]
        )
        first = self.heap.reference(node, block, size_class, 0) | replica_bits(replicas_of(word))
        references = np.uint64(first) + used * np.uint64(size)
        if size_class == self.heap.page_class:
            references = np.uint64(first) + page_offset(self.block_size, used)
        linked = _among(references, reachable)
        in_journals = ~linked & _among(references, held)
        gone = linked & self._on_lost_pages(references, size)
        linked_size = int((linked & ~gone).sum()) * size
        found["failed"] += int(gone.sum()) * size
        in_regions = int((linked & ~gone & _among(references, self.in_regions)).sum())
        found["reachable"] += linked_size - in_regions * size
        found["reserved"] += in_regions * size
        found["held"] += int(in_journals.sum()) * size
        found["free"] += (count - len(used)) * size
        found["reserved"] += length * self.block_size - count * size
        for reference in references[~linked & ~in_journals].tolist():
            found["leaked"] += size
            suspects.add((reference, size, k))

    def _lost_bytes(self, node: int, block: int) -> int:
        """How many bytes of a block are on pages that are lost."""
        first = self.heap.blocks + block * self.block_size
        return sum(
            max(0, min(first + self.block_size, low + length) - max(first, low))
            for low, length in self.endpoint.lost_pages(node)
        )

    def _on_lost_pages(self, references: Words, size: int) -> Flags:
        """Which of the objects of this size on a node have bytes on pages that are lost."""
        node = int(references[0]) >> NODE_SHIFT & 0xFF if len(references) else 0
        at = references & np.uint64(OFFSET_MASK)
        found = np.zeros(len(references), dtype=np.bool_)
        for low, length in self.endpoint.lost_pages(node):
            found |= (at < np.uint64(low + length)) & (at + np.uint64(size) > np.uint64(low))
        return found


def _among(found: Words, known: Words) -> Flags:
    """Which of `found` are in `known`, which is sorted."""
    if not len(known):
        return np.zeros(len(found), dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, found), len(known) - 1)
    among: Flags = known[places] == found
    return among
