"""Splitting a subtable in two, without locks, so that the index grows.

The paper locks directory entries, and moves pairs one after another; a client that is killed while
it holds a lock blocks all. Here any client that finds no room, or a frozen slot, takes all of these
steps:

    1. make the two halves, all of whose slots are UNSET, and CAS the halves' entries from 0 to them
    2. freeze each slot: by CAS set FROZEN, or a vacant or undecided one to FROZEN_VACANT
    3. for each pair, CAS the slot at the same place of its half from UNSET to the pair's word
    4. CAS the entry (index.py) from the subtable to SPLIT; free the subtable

The verbs of steps 2 and 3 are posted, those of many slots in a phase.

Any number of clients may take them at the same time. A frozen slot is never changed, so all clients
see the same words and write the same, and step 3 fills each slot once: no other client writes to a
half before step 4; by then no slot that gets a pair is UNSET, and no slot becomes UNSET again. The
other slots stay UNSET, which is vacant to all who use a half. A writer's CAS on a slot of the old
subtable fails once it is frozen, so no late write is lost (trap R7); an undecided insert starts
again in the half. Memory is taken before anything is frozen, so no client is ever stuck because
memory is full.

The same steps are done under a lock, pair by pair, in locked.py, as a transaction in
stores/rtx/race.py, with a log of values in stores/baselines/dtx/race.py, and on replicas in
stores/fusee/growth.py.

A kill leaves behind: before the CAS of step 1 a half in the client journal, for its entry; later
only a subtable, partly frozen, and halves, with which the next client goes on; after the CAS of
step 4 the old subtable in the client journal.

Limits: subtables are not merged again, and their memory is not given back.

`progress_of` says how far a hash table has grown: its subtables, how full they are, and the splits
under way. It takes one operation for each subtable, and reads it. Other clients may be at work:
what is told of a subtable was so at one moment, and the whole is no snapshot.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, REFERENCE_MASK, TENTATIVE
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.core.names import LARGER, shown
from limpet.stores.core.records import Objects
from limpet.stores.core.status import DONE, NO_MEMORY, VACANT_CLASS
from limpet.stores.race.index import Index, Place, is_frozen, is_split, is_valid
from limpet.stores.race.layout import (
    DIRECTORY_ENTRY,
    FROZEN,
    FROZEN_VACANT,
    OBJECT_MASK,
    PREFETCH_SIZE,
    SPLIT,
    UNSET,
)
from limpet.stores.race.parameters import GROUP_WORDS, SLOTS_PER_BUCKET, SLOTS_PER_GROUP

Holder = Callable[[int], "tuple[int, int] | None"]
"""Of the lock word of an entry: the slot of the client that has it, and since when, in ns since
1970; or None."""


def progress_of(store: Any, holder: Holder | None = None) -> dict[str, Any]:
    """Of a store on the index: `subtables`; `depth`, the least and the greatest number of splits
    behind one; `slots`; `pairs`; `splits`, a row for each split under way: how many halves there
    are, how many slots are frozen, and the clients at it. Raises NodeFailed."""
    made = store.parameters
    look = SubtableLook(store, holder)

    def rows_of_all() -> list[dict[str, Any]]:
        return [row for table in range(made.subtables) for row in look.rows(table)]

    rows = store.checker.outliving(store.within, rows_of_all)
    slots = made.groups * SLOTS_PER_GROUP * made.bucket_size // SLOTS_PER_BUCKET
    depths = [row["depth"] for row in rows] or [made.depth]
    return {
        "subtables": len(rows),
        "depth": [min(depths), max(depths)],
        "slots": slots * len(rows),
        "pairs": sum(row.pop("pairs") for row in rows),
        "splits": [{**row, "slots": slots} for row in rows if row.pop("splitting")],
    }


class SubtableLook:
    """A look at the subtables of one store."""

    def __init__(self, store: Any, holder: Holder | None) -> None:
        self.store = store
        self.checker = store.checker
        self.endpoint = store.endpoint
        self.membership = store.pool.membership
        self.holder = holder

    def rows(self, table: int) -> Iterator[dict[str, Any]]:
        """A row for each subtable of a directory."""
        depth = self.store.parameters.depth
        below = list(range(1 << depth, 2 << depth))
        while below:
            number = below.pop()
            row = self.store.within(self._row, table, number)
            if row is None:
                below += [2 * number, 2 * number + 1]
            elif row:
                yield row

    def _row(self, table: int, number: int) -> dict[str, Any] | None:
        """The row of an entry; empty if it has no subtable yet; None: it is split."""
        lock, pointer, found, halves = self.checker.look_at(table, number)
        if is_split(pointer):
            return None
        if found is None:
            return {}
        words = found[:, :, 1:]
        classes = words >> np.uint64(48) & np.uint64(0xFF)
        used = (words != 0) & (classes != VACANT_CLASS)
        frozen = used & (words & np.uint64(FROZEN) != 0)
        held = self.holder(lock) if self.holder else None
        return {
            "directory": table,
            "entry": number,
            "depth": number.bit_length() - 1,
            "pairs": int((used & (words & np.uint64(TENTATIVE) == 0)).sum()),
            "splitting": bool(halves or held or frozen.any()),
            "halves": len(halves),
            "frozen": int(frozen.sum()),
            **self._by(table, number, halves, held),
        }

    def _by(
        self, table: int, number: int, halves: list[int], held: tuple[int, int] | None
    ) -> dict[str, Any]:
        """`pids` of the clients that have made halves or hold the lock, and `since_ns`, if the lock
        says so: in ns since 1970."""
        pids = set()
        for slot, word in self.membership.occupied() if halves or held else ():
            if (held and held[0] == slot) or any(
                reference in halves for reference, _ in journal_of(self.endpoint, slot)
            ):
                pids.add(self.membership.pid(word))
        return {"pids": sorted(pids), "since_ns": held[1] if held else None}


BUCKET_WORDS: Final = SLOTS_PER_BUCKET + 1
BUCKETS: Final = GROUP_WORDS // BUCKET_WORDS
"""Words of a bucket, the first of which is its header; buckets of a group."""
PART: Final = 10 * GROUP_WORDS
"""Words of a subtable whose slots are frozen in one phase."""
READERS: Final = 16
"""Pairs whose keys are read in one phase."""


class Splitter:
    """Splits the subtables of an index."""

    def __init__(self, pool: Any, index: Index, parameters: Any, replicas: int = 1) -> None:
        self.pool = pool
        self.index = index
        self.parameters = parameters
        self.replicas = replicas
        """Of subtables, and of pairs, unless the store says otherwise (stores/fusee/store.py)."""
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator.coherent()
        self.objects = index.objects
        self.objects_needed = 2
        """Objects of the size of a subtable that a split takes."""
        self.exactly = 0
        """EXACTLY: subtables lie on the nodes of their directories."""
        self.words = array("Q")
        """Of the subtable that `freeze` has frozen."""
        self.wanted = array("Q", bytes(8 * PART))
        self.tickets = array("Q", bytes(8 * PART))
        self.indices = array("Q", bytes(8 * PART))
        """Of the slots of a phase: the word of each afterwards, the result of its verb, and its
        index in the subtable."""
        self.readers: list[Objects] = []
        self.blank = array("Q")
        """The last subtable of `filled`."""
        self.cramped = 0
        """Pointer to a subtable that is to be split though there is room for the key."""

    # ---- growth -------------------------------------------------------------------------------

    def grow(self, place: Place, key: bytes) -> int:
        """Split the subtable of a key, or make it, if it still has to be. Within an operation.

        DONE, NO_MEMORY, or AGAIN: something is `place.busy`. Raises StoreFull.
        """
        index = self.index
        index.choose(place, key)
        index.read_row(place, 0)
        place.busy = 0
        if not place.pointer:
            return self.begin(place)
        enough = not index.any_frozen() and place.pointer != self.cramped
        # A key that is there needs no room.
        if enough and (index.room(place) >= 0 or index.match(place, key, 0, False)):
            return DONE
        if place.depth == index.depth_max:
            raise StoreFull(
                f"{index.name}: the subtable of the key {shown(key)} is full and cannot be split, "
                f"as it was {place.depth} times; the store was made with capacity="
                f"{self.parameters.capacity} and limit={self.parameters.limit}, 0 being none; "
                f"{LARGER}"
            )
        return self.split(place)

    def begin(self, place: Place) -> int:
        """Make one of the first subtables: DONE, or NO_MEMORY."""
        return DONE if self.obtain(place, place.number, 0) else NO_MEMORY

    def find_memory(self, key: bytes, objects: int, update: bool) -> None:
        """Have memory ready for so many objects of the size of the key's subtable. `update`: as
        `Allocator.replenish_all` has it."""
        node = self.index.node_of(self.index.table_of(key))
        sizes = [self.index.subtable_size] * objects
        self.allocator.replenish_all(node | self.exactly, sizes, self.replicas, 0, 0, update)

    def wait(self, busy: int, table: int, attempt: int) -> None:
        """Wait a little for the client that was in the way of a split."""

    def split(self, place: Place) -> int:
        """Split the subtable of a key: DONE, also if it is split by now; NO_MEMORY; or AGAIN."""
        old = place.pointer
        first = self.obtain(place, 2 * place.number, UNSET)
        second = self.obtain(place, 2 * place.number + 1, UNSET) if first else 0
        if not second:
            return NO_MEMORY
        if self.endpoint.load(place.entry) != old:
            return DONE
        # CRASH(freezing): the next client that wants to write here goes on; readers are not
        # concerned.
        self.freeze(old)
        self.fill_pairs(place.depth, first & ADDRESS_MASK, second & ADDRESS_MASK)
        self.client.log(old & REFERENCE_MASK, place.entry)
        if self.endpoint.durable:
            self.persist_halves(place, first, second)
        self.endpoint.cas(place.entry, old, SPLIT)
        # CRASH(split): the old subtable is in the client journal and no longer linked.
        self.endpoint.wait()
        return DONE

    def persist_halves(self, place: Place, first: int, second: int) -> None:
        """Make both halves of an entry persist, whichever clients have filled them, and the entries
        that point to them. Before the subtable is split for good: after a power cut, an entry that
        is not split has its subtable, and no halves (check.py)."""
        index = self.index
        for half in (0, 1):
            self.endpoint.dirty(index.entry(place.table, 2 * place.number + half), 8)
        self.endpoint.dirty(index.base_of(first), index.subtable_size)
        self.endpoint.dirty(index.base_of(second), index.subtable_size)
        self.endpoint.persist()

    def obtain(self, place: Place, number: int, word: int) -> int:
        """The pointer of an entry; if it is 0, to a new subtable with this word in each slot.

        0: there is no memory ready.
        """
        entry = self.index.entry(place.table, number)
        pointer = self.endpoint.load(entry)
        if pointer:
            return pointer
        node = self.index.node_of(place.table)
        new = self.allocator.allocate(node | self.exactly, self.index.subtable_size, 1)
        if not new:
            return 0
        filled = self.filled(number, word)
        self.endpoint.write_words(new & ADDRESS_MASK, filled, len(filled))
        if self.endpoint.durable:
            # ORDER: a subtable persists before an entry points to it.
            self.endpoint.persist()
        self.client.retarget(self.client.held - 1, entry)
        pointer = self.endpoint.cas(entry, 0, new)
        # CRASH(subtable-made): it is linked, and the next client that needs it goes on.
        self.endpoint.wait()
        return pointer or new

    def filled(self, number: int, word: int) -> Any:
        """A subtable of this number with the same word in each slot; valid until the next call."""
        if not len(self.blank) or self.blank[1] != word:
            # ORDER: whole before it is kept: a signal handler that raises leaves no half of it.
            self.blank = array("Q", [word]) * (self.index.subtable_size // 8)
        blank = self.blank
        for bucket in range(len(blank) // BUCKET_WORDS):
            blank[BUCKET_WORDS * bucket] = number << 32 | bucket // BUCKETS
        return blank

    def read_words(self, base: int) -> None:
        """Read the words of the subtable at `base`; one phase."""
        if not len(self.words):
            self.words = array("Q", bytes(self.index.subtable_size))
        self.endpoint.post_read(base, self.words, self.index.subtable_size >> 3)
        self.endpoint.wait()

    def freeze(self, pointer: int) -> int:
        """Freeze all slots of the subtable there, and have its words; a slot that a transaction
        holds, or 0."""
        base = self.index.base_of(pointer)
        self.read_words(base)
        for start in range(0, len(self.words), PART):
            held = self._freeze_part(base, start, min(start + PART, len(self.words)))
            if held:
                return held
        return 0

    def _freeze_part(self, base: int, start: int, end: int) -> int:
        """`freeze`, of the words from `start` to `end`: one phase, and another one for the slots
        that have changed meanwhile."""
        endpoint, words, wanted, tickets = self.endpoint, self.words, self.wanted, self.tickets
        again, count = False, 1
        while count:
            count = held = 0
            for index in range(start, end):
                word = words[index]
                if not index & 7 or (again and is_frozen(word)):
                    continue
                slot = base + 8 * index
                if word & HELD_MASK == HELD:
                    held = slot
                    break
                if is_frozen(word):
                    # No CAS confirms it, and a long read may be cut between two bytes.
                    desired = word
                    tickets[count] = endpoint.post_load(slot)
                else:
                    # `fill_pairs` reads the keys of all pairs, which may be anywhere
                    endpoint.prefetch(word & ADDRESS_MASK, PREFETCH_SIZE)
                    desired = word | FROZEN if is_valid(word) else FROZEN_VACANT
                    tickets[count] = endpoint.post_cas(slot, word, desired)
                wanted[count] = desired
                self.indices[count] = index
                count += 1
            if count:
                endpoint.wait()
            if held:
                return held
            for number in range(count):
                index = self.indices[number]
                was = endpoint.result(tickets[number])
                words[index] = wanted[number] if was == words[index] else was
            again = True
        return 0

    def half_of(self, word: int, depth: int) -> int:
        """Which half of a subtable, whose entry is at this depth, the pair of a slot belongs to."""
        self.objects.load(word & OBJECT_MASK)
        return self.half_with(self.objects.key(), depth)

    def fill_pairs(self, depth: int, first: int, second: int) -> None:
        """Fill the slots of both halves that get a pair of the subtable that is frozen; `depth`: of
        its entry. The keys of READERS pairs are read in one phase, in which those before are
        filled."""
        at_once = self.endpoint.hints
        while len(self.readers) < (1 if at_once else READERS):
            self.readers.append(self.objects.reader())
        reader = self.readers[0]
        count = 0
        for index in range(len(self.words)):
            word = self.words[index]
            if not index & 7 or not is_valid(word):
                continue
            if not at_once:
                reader = self.readers[count]
            reader.post(word & OBJECT_MASK)
            if at_once:
                self._fill_half(reader, index, depth, first, second)
            self.indices[count] = index
            count += 1
            if count == READERS:
                self._fill_read(0 if at_once else count, depth, first, second)
                count = 0
        self._fill_read(0 if at_once else count, depth, first, second)
        self.endpoint.wait()

    def _fill_read(self, count: int, depth: int, first: int, second: int) -> None:
        """End the phase in which the keys of these pairs are read, and fill their slots."""
        self.endpoint.wait()
        for number in range(count):
            reader = self.readers[number]
            self._fill_half(reader, self.indices[number], depth, first, second)

    def _fill_half(self, reader: Objects, index: int, depth: int, first: int, second: int) -> None:
        """Fill the slot of a pair in its half; the reader has read the pair."""
        reader.arrived()
        half = second if self.half_with(reader.key(), depth) else first
        self.fill(half + 8 * index, self.words[index] & ~FROZEN)

    def half_with(self, key: bytes, depth: int) -> int:
        """Which half of a subtable, whose entry is at this depth, a key belongs to."""
        return self.index.prefix(hash64(key)) >> self.index.depth_max - depth - 1 & 1

    def fill(self, slot: int, word: int) -> None:
        """Fill a slot of a half, unless another client has; not waited for."""
        self.endpoint.post_cas(slot, UNSET, word)

    # ---- traces of dead clients -----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        """The crash points of a split that the journal of a dead client shows."""
        found: set[str] = set()
        for reference, link_address in journal_of(self.endpoint, ident >> INCARNATION_BITS):
            for table, directory in enumerate(self.index.tables):
                if 0 <= link_address - directory < self.index.directory_size:
                    try:
                        found |= self._left_at(table, reference, link_address)
                    except NodeFailed:
                        continue
        return found

    def _left_at(self, table: int, reference: int, entry: int) -> set[str]:
        """The crash points that a pair of the journal shows which names this entry."""
        index = self.index
        pointer = self.endpoint.load(entry)
        if is_split(pointer):
            return {"split"}
        if pointer != reference:
            return set()
        parent = index.entries - (entry - index.tables[table]) // DIRECTORY_ENTRY >> 1
        halves = len(index.halves(table, parent)) if parent >> index.depth_first else 0
        return {"subtable-made", "freezing"} if halves == 2 else {"subtable-made"}
