"""A whole hash index: counting, all keys, all references, and the check of every invariant.

`keys` and `check` go through one group after another, each within an operation of its own, which
the store begins and ends: its `within(step, ...)`. Counting is an operation for each entry of the
directories as they were made. Listing references does not pin.

After a power cut `Mending` ends or takes back what was under way in a `race` index:

    undecided inserts     their slots become vacant: no client went by them
    an entry that is not  its halves are given up, and its subtable's slots are not frozen any more.
    split                 No operation that returned went by a half, or it had made the entry's
                          SPLIT persistent (index.py: `locate`); and what it would have found there
                          is in the subtable, whose slots do not change once they are frozen
    an entry that is      nothing: both halves were persistent before (splitter.py)
    split

Each step only takes something away, so a cut or a kill in the midst of it does no harm. Every slot
that is left links to an object that was persistent before the slot was (slots.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, LARGE_CLASS, TENTATIVE
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.core.names import shown
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.core.whole import check_each
from limpet.stores.race.index import Index, Place, is_split, is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.race.parameters import GROUP_SIZE, GROUP_WORDS

Within = Callable[..., Any]


class Check:
    """Checks a whole index."""

    def __init__(self, pool: Any, index: Index) -> None:
        self.pool = pool
        self.index = index
        self.name = index.name
        self.endpoint = index.endpoint
        self.heap = index.heap
        self.objects = index.objects
        self.place = Place()

    def outliving(self, within: Within, look: Callable[[], Any]) -> Any:
        """The result of `look`; an index with replicas has it look again when a node is lost."""
        return look()

    def look_at(self, table: int, number: int) -> tuple[int, int, Any, list[int]]:
        """Of an entry: its lock, its pointer, a copy of its subtable, or None if it has none, and
        the pointers to the halves that are there. For splitter.py; within an operation."""
        index = self.index
        at = index.entry(table, number)
        pointer = self.endpoint.load(at)
        if not pointer or is_split(pointer):
            return 0, pointer, None, []
        words = index.slots_of(index.base_of(pointer))
        return self.endpoint.load(at - POINTER), pointer, words, index.halves(table, number)

    # ---- references ---------------------------------------------------------------------------

    def count(self, within: Within) -> int:
        """How many keys there are. NodeFailed: a subtable is lost."""
        return sum(len(pairs) for pairs, _ in self._below_roots(within))

    def _below_roots(self, within: Within) -> Iterator[tuple[Any, Any]]:
        """`_linked_below` of each entry of the directories as they were made, each in an operation
        of its own."""
        for table in range(self.index.subtables):
            for number in self.index.roots():
                yield within(self._linked_below, table, number, False)

    def size(self, within: Within) -> int:
        """Bytes of all subtables. NodeFailed as `count`."""
        block = self.heap.layout.block_size
        subtable = self.index.subtable_size
        spans = (subtable + block - 1) // block * block
        size = self.heap.sizes[self.heap.size_class(subtable)] or spans
        return size * sum(len(tables) for _, tables in self._below_roots(within))

    def references(self) -> Any:
        """References to all pairs and all subtables, as far as they are not lost, as uint64."""
        return np.concatenate(self.linked_all())

    def linked_all(self) -> tuple[Any, Any]:
        """References to all pairs, and to all subtables, as far as they are not lost."""
        pairs, tables = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
        for table in range(self.index.subtables):
            with contextlib.suppress(NodeFailed):  # the directory is lost
                found = self.linked(table, True)
                pairs, tables = np.append(pairs, found[0]), np.append(tables, found[1])
        return pairs, tables

    def linked(self, table: int, lossy: bool = False) -> list[Any]:
        """References to the pairs of a directory, and to its subtables.

        NodeFailed if a subtable is lost; if `lossy`, its pairs are passed over.
        """
        below = [self._linked_below(table, number, lossy) for number in self.index.roots()]
        return [np.concatenate(some) for some in zip(*below, strict=True)]

    def _linked_below(self, table: int, number: int, lossy: bool) -> tuple[Any, Any]:
        """References to the pairs of an entry's subtables, and to the subtables. Does not pin."""
        index = self.index
        # A pinned client shows progress on a long walk.
        self.pool.membership.progress()
        self.pool.client.go_on()
        pointer = self.endpoint.load(index.entry(table, number))
        self.endpoint.dirty(index.entry(table, number), 8)
        while not is_split(pointer):
            pairs = np.empty(0, dtype=np.uint64)
            tables = []
            if pointer:
                try:
                    pairs = self.pairs_of(index.base_of(pointer))
                except NodeFailed:
                    if not lossy:
                        raise
                tables = [pointer, *index.halves(table, number)]
            # ORDER: after the words: an entry never has the same subtable again.
            before, pointer = pointer, self.endpoint.load(index.entry(table, number))
            if pointer == before:
                return pairs, np.array(tables, dtype=np.uint64)
        half = index.below(number)
        first, second = (self._linked_below(table, half + k, lossy) for k in (0, 1))
        return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])

    def pairs_of(self, base: int) -> Any:
        """References to all validly linked objects of the subtable there."""
        table = self.index.slots_of(base).ravel().copy()
        for index in np.flatnonzero(table & np.uint64(HELD_MASK) == HELD).tolist():
            if index & 7:
                slot = base + 8 * index
                table[index] = self.index.holds.settled(slot, int(table[index]))
        words = table.reshape(-1, 8)[:, 1:].ravel()
        vacant = words >> np.uint64(48) & np.uint64(0xFF) == VACANT_CLASS
        words = words[(words != 0) & ~vacant & (words & np.uint64(TENTATIVE) == 0)]
        return words & np.uint64(OBJECT_MASK)

    # ---- keys ---------------------------------------------------------------------------------

    def keys(self, within: Within) -> Iterator[bytes]:
        """Every key, a group at a time."""
        for table in range(self.index.subtables):
            yield from self.keys_of(within, table)

    def keys_of(self, within: Within, table: int) -> Iterator[bytes]:
        """Every key of a directory."""
        for number in self.index.roots():
            yield from self._keys_below(within, table, number, 0)

    def _keys_below(self, within: Within, table: int, number: int, group: int) -> Iterator[bytes]:
        """The keys below an entry, from this group of its subtables on."""
        for there in range(group, self.index.groups):
            found = within(self.keys_at, table, number, there)
            if found is None:
                # A key has the same group in the half, so the groups before it have been met.
                half = self.index.below(number)
                yield from self._keys_below(within, table, half, there)
                yield from self._keys_below(within, table, half + 1, there)
                return
            yield from found

    def keys_at(self, table: int, number: int, group: int) -> list[bytes] | None:
        """The keys of a group of an entry's subtable; None: it is split. Within an operation."""
        entry = self.index.entry(table, number)
        pointer = self.endpoint.load(entry)
        self.endpoint.dirty(entry, 8)
        if is_split(pointer):
            return None
        if not pointer:
            return []
        return self.keys_in(self.index.base_of(pointer) + group * GROUP_SIZE)

    def keys_in(self, group: int) -> list[bytes]:
        """The keys of the group at this address. Within an operation."""
        found = []
        words = self.index.words
        self.endpoint.read_words(group, words, GROUP_WORDS)
        self.endpoint.dirty(group, GROUP_SIZE)
        for index in range(GROUP_WORDS):
            word = self.index.holds.settled(group + 8 * index, words[index]) if index & 7 else 0
            if is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                found.append(self.objects.key())
        return found

    # ---- the check ----------------------------------------------------------------------------

    def check(self, within: Within) -> None:
        """Verify every invariant; StoreCorrupt names the one that does not hold. NodeFailed: a
        subtable is lost, and the others are sound."""
        seen: dict[bytes, int] = {}
        check_each(range(self.index.subtables), lambda table: self.check_of(within, table, seen))

    def check_of(self, within: Within, table: int, seen: dict[bytes, int]) -> None:
        """Verify a directory with its subtables; `seen`: slots of the keys met already."""
        for number in self.index.roots():
            self._check_below(within, table, number, 0, seen)

    def _check_below(
        self, within: Within, table: int, number: int, group: int, seen: dict[bytes, int]
    ) -> None:
        for there in range(group, self.index.groups):
            if not within(self.check_at, table, number, there, seen):
                half = self.index.below(number)
                self._check_below(within, table, half, there, seen)
                self._check_below(within, table, half + 1, there, seen)
                return

    def check_at(self, table: int, number: int, group: int, seen: dict[bytes, int]) -> bool:
        """Check a group of an entry's subtable; False: it is split. Within an operation."""
        entry = self.index.entry(table, number)
        while True:
            pointer = self.endpoint.load(entry)
            if is_split(pointer):
                return False
            if not pointer:
                return True
            try:
                if not self.heap.plausible(pointer) or not self.heap.used(pointer):
                    raise StoreCorrupt(
                        f"{self.name}: entry {number} of directory {table} points to no "
                        f"subtable in use: {pointer:#x}"
                    )
                self.check_group(number, self.index.base_of(pointer), group, seen)
                return True
            except StoreCorrupt:
                if self.endpoint.load(entry) == pointer:
                    raise

    def check_group(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        """Check a group of the subtable of this number, which is at `base`."""
        start = base + group * GROUP_SIZE
        words = np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8").tolist()
        for index, word in enumerate(words):
            where = f"{self.name}: subtable {number}, group {group}, word {index} = {word:#x}"
            if index & 7 == 0:
                if word != number << 32 | group:
                    raise StoreCorrupt(f"{where}: not the bucket's header")
            elif is_valid(self.index.holds.settled(start + 8 * index, word)):
                self._check_slot(start, start + 8 * index, word, where, seen)

    def _check_slot(
        self, group: int, slot: int, word: int, where: str, seen: dict[bytes, int]
    ) -> None:
        wrong = self.wrong_with(group, slot, word, seen)
        # Another client may have replaced what the slot held since we read it.
        if wrong and self.endpoint.load(slot) == word:
            raise StoreCorrupt(f"{where}: {wrong}")

    def wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        """The fault of a slot, or "" if it has none."""
        word = self.index.holds.settled(slot, word)
        reference = word & OBJECT_MASK
        if not self.heap.plausible(reference):
            return "points to no object"
        if not self.heap.used(reference):
            return "points to an object that is not in use"
        self.objects.load(reference)
        if not self.objects.fits(reference) or not self.objects.intact():
            return "the object's sizes or checksum do not hold"
        key = self.objects.key()
        place = self.place
        self.index.choose(place, key)
        if word >> 56 != place.hash & 0xFF:
            return f"the fingerprint is not that of {shown(key)}"
        if slot not in [self.index.address(place, index) for index in range(32)]:
            return f"{shown(key)} does not belong into group {group:#x}"
        # A key that was deleted and inserted again meanwhile is met twice; its first slot has
        # changed.
        if key in seen and self._holds(seen[key], key):
            return f"{shown(key)} is also in the slot at {seen[key]:#x}"
        seen[key] = slot
        return ""

    def _holds(self, slot: int, key: bytes) -> bool:
        """Whether a slot of the subtable that was chosen last has this key."""
        base = self.place.base
        # In a subtable that is split by now, it is not the key's slot any more.
        if not base or not base <= slot < base + self.index.subtable_size:
            return False
        word = self.index.holds.settled(slot, self.endpoint.load(slot))
        if not is_valid(word):
            return False
        self.objects.load(word & OBJECT_MASK)
        return self.objects.key_is(key)


CLASS: Final = np.uint64(0xFF)
CLASS_OF_FROZEN: Final = np.uint64(0x7F)
UNSETTLED: Final = np.uint64(FROZEN | TENTATIVE)


class Mending:
    """Makes an index whole, with no other client there."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.endpoint = index.endpoint
        self.objects = index.objects
        self.large: dict[int, int] = {}
        """By reference, the bytes of pairs and subtables that take blocks of their own."""

    def run(self) -> dict[int, int]:
        """Make the index whole, but for its parts on lost nodes; returns `large`."""
        for table in range(self.index.subtables):
            try:
                for number in self.index.roots():
                    self.mend_below(table, number)
            except NodeFailed:
                continue
        return self.large

    def mend_below(self, table: int, number: int) -> None:
        """Make the subtables below an entry whole."""
        pointer = self.endpoint.load(self.index.entry(table, number))
        if is_split(pointer):
            half = self.index.below(number)
            self.mend_below(table, half)
            self.mend_below(table, half + 1)
        else:
            self.give_up_halves(table, number)
            if pointer:
                if pointer >> 48 & 0xFF == LARGE_CLASS:
                    self.large[pointer & OBJECT_MASK] = self.index.subtable_size
                self.mend_slots(pointer & ADDRESS_MASK)

    def give_up_halves(self, table: int, number: int) -> None:
        """Take the halves from an entry whose split has not ended."""
        if not number >> self.index.depth_max:
            for half in range(2):
                entry = self.index.entry(table, 2 * number + half)
                if self.endpoint.load(entry):
                    self.endpoint.store(entry, 0)

    def mend_slots(self, base: int) -> None:
        """Make the slots of a subtable whole, and note the pairs that take blocks of their own."""
        words = self.index.slots_of(base).ravel()
        classes = words >> np.uint64(48) & CLASS
        unsettled = (words & UNSETTLED != 0) & (classes != VACANT_CLASS)
        for at in np.flatnonzero(unsettled).tolist():
            if at & 7:
                word = int(words[at])
                self.endpoint.store(base + 8 * at, 0 if word & TENTATIVE else word & ~FROZEN)
        large = (words != 0) & (classes & CLASS_OF_FROZEN == LARGE_CLASS)
        for at in np.flatnonzero(large).tolist():
            word = int(words[at])
            if at & 7 and is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                self.large[word & OBJECT_MASK] = self.objects.bytes_used()
