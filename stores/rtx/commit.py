"""The commit of a transaction with a log: optimistic concurrency control (rTX 4.3, figure 8).

Written after the prose of the paper, and not after the figure.

    1. write the new data of each object and slot, and the log that names it (log.py, parts.py);
       publish the log
    2. lock each object from the version that was read, in the order of addresses; one that has
       another version, or is locked, is a conflict. Then hold each slot from the word that was
       read, likewise; where a key is inserted, look whether it has come into another slot
       meanwhile (rtx/hash_slots.py)
    3. validate (reads.py): each object that was only read has the lock word and the pointer that it
       had, so it is not locked, or without a log, when its pointer counts (lllock.py); each key
       that was only read has the value that it had, or none, and no client holds its slot
    4. INIT -> DOING; carry it out; DONE; give back the old data

So all that was read was true at one moment, after 2 and before 4, and what is written follows from
it; hence transactions are strictly serialisable, with gets (sherman/trees.py, race/hash_store.py)
among them: a get of what is written waits from 2 until 4.

A conflict, or being aborted by a client that found the lease over: INIT -> ABORT, unlock to the
versions from before (others, to new ones), let go of the slots as they were, give back the new
data.

A kill leaves behind, where the log is in the client journal from its first word on:
    before 2          new data in the log, or in the client journal: freed
    in 2 and 3        some objects are locked, some slots held, the log INIT: aborted by whoever
                      meets them when the lease is over, or recovers the dead
    after INIT -> DOING, until DONE
                      some objects and slots are new, others locked or held: carried out likewise
    DONE              the old data is given back, by who recovers the dead

Conflicts never wait, so no client waits in a circle. All of it is one operation of the client.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.rtx.layout import EXTENT_PAIR, LOGGED, POINTER, SLOT
from limpet.stores.rtx.lllock import is_vacant
from limpet.stores.rtx.log import Entry, Log
from limpet.stores.rtx.parts import Change, Part
from limpet.stores.status import AGAIN, DONE, NO_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.rtx.lllock import LLLocks
    from limpet.stores.rtx.reads import ReadPlace, Reads
    from limpet.stores.sherman.write_set import WriteSet


STRIDE: Final = 64
"""After so many keys or objects we show again that we do not stand still."""


class SlotWrite:
    """What a transaction does to a slot: `old`, its word; value None: the key is deleted."""

    def __init__(
        self, store: Any, key: bytes, value: bytes | None, old: int, inserts: bool
    ) -> None:
        self.store = store
        self.key = key
        self.value = value
        self.old = old
        self.inserts = inserts

    def size(self) -> int:
        """Bytes of the new pair."""
        return int(self.store.objects.size_of(self.key, self.value))


class Commit:
    """The write set of a transaction, and its commit. `begin` starts anew."""

    def __init__(self, pool: Any, locks: LLLocks) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator
        self.heap = pool.heap
        self.locks = locks
        self.membership = pool.membership
        self.effort = 0
        """By how many objects the lease is to be longer than for those written."""
        self.reads: Reads | None = None
        """What was read in operations before this one."""
        self.begin(0)

    def begin(self, link: int) -> None:
        """Forget what is staged. `link`: how the client journal names a store that resolves the
        log."""
        self.link = link
        self.pages: dict[int, Any] = {}
        """New data of objects, of `size` bytes, which `write(address, state)` writes; None: to be
        vacated."""
        self.versions: dict[int, int] = {}
        self.extents: list[tuple[WriteSet, int, bytes, bytes]] = []
        self.loose: dict[int, int] = {}
        self.dropped: dict[int, int] = {}
        """New extents, and those that are not linked any more, with their stores as
        link_addresses."""
        self.swings: dict[int, tuple[int, int]] = {}
        """Old and new pointer of each object."""
        self.slots: dict[int, SlotWrite] = {}
        self.parts: list[Part] = []
        self.crowded: list[tuple[Any, bytes, int]] = []
        """For which key of which store there is no room, and in which subtable."""
        self.busy = 0
        """The object that was in the way, or slot, with SLOT."""
        self.owners: dict[int, ReadPlace] = {}
        """For which key of which store each of these is written."""

    def abandon(self) -> None:
        """An error ends the operation: nothing to do, whoever meets our locks goes by the log."""

    def go_on(self, count: int) -> None:
        """Show now and then, as `count` goes up, that we are at work: who needs memory that our pin
        keeps from being used again would have us ended."""
        if not count % STRIDE:
            self.membership.progress()

    def expect(self, at: int, version: int) -> None:
        """An object has been read in this version; if it is written, it is locked from that."""
        self.versions.setdefault(at, version)

    def write(self, at: int, page: Any) -> None:
        """Stage the new data of an object; None: vacate it."""
        self.pages[at] = page

    def write_slot(self, slot: int, write: SlotWrite) -> None:
        """Stage what becomes of a slot."""
        self.slots[slot] = write

    def complete(self) -> bool:
        """The last look before it is decided, when all locks are held. False: a client is in the
        way."""
        return True

    def carry_out(self, log: Log) -> None:
        """Carry out what is decided."""
        log.finish()

    # ---- committing -----------------------------------------------------------------------------

    def run(self) -> int:
        """Commit: DONE; AGAIN, if there is a conflict; NO_MEMORY. Nothing has happened then.

        Raises NodeFailed; nothing has happened then either, on the nodes that are left.
        """
        state = self.locks.draw(LOGGED)
        parts = self._slots_by_node()
        size = self._size_by_words(parts)
        log = self._open(state, size)
        if log is None:
            return NO_MEMORY
        try:
            outcome = self._attempt(log, state, parts, size)
        except NodeFailed:
            if log.is_lost():  # else it is in the client journal, and says all
                self._end_without(state, False)
            raise
        if outcome != DONE:
            return outcome
        # CRASH(decided): nothing is changed; whoever meets a lock, or recovers us, carries it out.
        self.endpoint.wait()
        try:
            self.carry_out(log)
            self.endpoint.wait()
            # CRASH(over): all is changed; recovery gives back what was dropped.
            log.give_back(self.heap, True)
        except NodeFailed:
            self._end_without(state, True)
        self.client.release(0)
        return DONE

    def _attempt(self, log: Log, state: int, parts: dict[int, list[int]], size: int) -> int:
        """All up to the decision, or what undoes it: DONE, it commits; AGAIN or NO_MEMORY."""
        if not self._write_all(log, state, parts, size):
            self._abort(log, {}, state)
            return NO_MEMORY
        log.publish(state, len(self.pages) + len(self.slots) + self.effort)
        # CRASH(published): nothing is locked; recovery aborts it.
        held = self._lock_all(log, state)
        self.endpoint.wait()
        whole = len(held) == len(self.pages) and self._hold_slots() and self.validate()
        if not (whole and self.complete() and log.begin()):
            self._abort(log, held, state)
            return AGAIN
        return DONE

    def _end_without(self, state: int, committed: bool) -> None:
        """Carry out what is decided, or undo all, when the log was lost with its memory node.

        A client that waited for us may have let go of what we held, as it was, and others have
        changed it since (repair.py). So of what was, and what should be, all stays that is linked.
        """
        left: list[tuple[int, int]] = []
        for at, swing in self.swings.items():
            with contextlib.suppress(NodeFailed):
                if committed:
                    self.locks.install(at, *swing)
                self.locks.release(at, state)
            left += [(pointer, at + POINTER) for pointer in swing]
        for part in self.parts:
            changes = part.changes()
            with contextlib.suppress(NodeFailed):
                for change in changes:
                    part.let_go_of(change, committed)
            for change in changes:
                left += [(change.old, change.slot), (change.new, change.slot)]
            left.append((part.reference, 0))
        for word, link_address in (*left, *self.loose.items(), *self.dropped.items()):
            reference = word & REFERENCE_MASK
            if not is_vacant(reference):
                self.heap.settle(reference, link_address)

    def _slots_by_node(self) -> dict[int, list[int]]:
        """The slots that are written on each memory node, in order."""
        found: dict[int, list[int]] = {}
        for slot in sorted(self.slots):
            found.setdefault(slot >> NODE_SHIFT & 0xFF, []).append(slot)
        return found

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Node and size of all memory that is needed, the log first, then the parts."""
        parts = self._slots_by_node()
        size = self._size_by_words(parts)
        yield min(self.pages or self.slots) >> NODE_SHIFT & 0xFF, size
        for node in parts:
            yield node, size
        for staging, at, key, value in self.extents:
            yield at >> NODE_SHIFT & 0xFF, staging.store.objects.size_of(key, value)
        for at, page in self.pages.items():
            if page is not None:
                yield at >> NODE_SHIFT & 0xFF, page.size
        for slot, size in self._pairs():
            yield slot >> NODE_SHIFT & 0xFF, size

    def _size_by_words(self, parts: dict[int, list[int]]) -> int:
        """Bytes of the log, and of each part."""
        count = len(self.pages) + len(self.extents) + len(self.dropped) + len(parts)
        size = Log.size(count)
        for slots in parts.values():
            size = max(size, Part.size(len(slots)))
        # As large as some new data, for which there is memory; that of another size may be missing.
        usual = {page.size for page in self.pages.values() if page is not None}
        for write in self.slots.values():
            if write.value is not None:
                usual.add(write.size())
        fits = [each for each in usual if each >= size]
        return min(fits) if fits else size

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """The slots that get a new pair, and the bytes of that."""
        for slot, write in self.slots.items():
            if write.value is not None:
                yield slot, write.size()

    def replenish(self, sparing: int = 0, update: bool = False) -> None:
        """Have memory ready for all of it, `sparing` free blocks of each memory node.

        `update`: as `Allocator.replenish_all` has it. Outside of operations. Raises StoreFull.
        """
        sizes: dict[tuple[Any, int], list[int]] = {}
        by_words = 1 + len(self._slots_by_node())
        for index, (node, size) in enumerate(self._sizes()):
            allocator = self.allocator.coherent() if index < by_words else self.allocator
            sizes.setdefault((allocator, node), []).append(size)
        for (allocator, node), some in sizes.items():
            allocator.replenish_all(node, some, 1, sparing, 0, update)

    def _open(self, state: int, size: int) -> Log | None:
        node = min(self.pages or self.slots) >> NODE_SHIFT & 0xFF
        reference = self.allocator.coherent().allocate(node, size, 1)
        if not reference:
            return None
        log = Log(self.locks, reference)
        log.open(state)
        # ORDER: it is one before the client journal says so.
        self.client.retarget(0, self.link)
        return log

    def _write_all(self, log: Log, state: int, parts: dict[int, list[int]], size: int) -> bool:
        """Write all new data, and its entries in the log; False: there is no memory ready.

        `parts`: the slots of each; `size`: bytes of the log, and of each part.
        """
        for staged in self.extents:
            reference = self._new_extent(*staged)
            if not reference:
                return False
            self._noted(log, Entry(0, 0, reference))
        for reference in self.dropped:
            log.note(Entry(0, reference, 0))
        for node, slots in parts.items():
            reference = self.allocator.coherent().allocate(node, size, 1)
            if not reference or not self._write_part(log, reference, slots):
                return False
        self.first = len(log.entries())
        for count, at in enumerate(sorted(self.pages), 1):
            self.go_on(count)
            page = self.pages[at]
            if page is None:
                self.swings[at] = (0, self.locks.vacated())
                log.note(Entry(at, *self.swings[at]))
                continue
            reference = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, page.size, 1)
            if not reference:
                return False
            page.write(reference & ADDRESS_MASK, state)
            self.swings[at] = (0, reference)
            self._noted(log, Entry(at, 0, reference))
        return True

    def _write_part(self, log: Log, reference: int, slots: list[int]) -> bool:
        """Write a part, in the client journal, and the pairs for its slots; False: there is no
        memory ready."""
        part = Part(self.endpoint, reference)
        part.open(log.reference, log.owner())
        self.parts.append(part)
        log.note_part(part)
        # CRASH(noted): it is in the log and in the client journal; recovery frees it.
        self.client.drop(1)
        for count, slot in enumerate(slots, 1):
            write = self.slots[slot]
            new = write.store.pair_for(write.key, write.value, write.old)
            if not new:
                return False
            part.note(Change(slot, write.old, new))
            if write.value is not None:
                self.client.drop(1)
            self.go_on(count)
        return True

    def _new_extent(self, staging: WriteSet, at: int, key: bytes, value: bytes) -> int:
        """Write an extent, in the client journal, and have its key's entry name it; 0: no memory is
        ready."""
        objects = staging.store.objects
        node = at >> NODE_SHIFT & 0xFF
        reference: int = self.allocator.allocate(node, objects.size_of(key, value), 1)
        if reference:
            objects.write(reference, key, value)
            staging.place(at, key, reference)
            self.loose[reference] = staging.store.link | EXTENT_PAIR
        return reference

    def _noted(self, log: Log, entry: Entry) -> None:
        log.note(entry)
        # CRASH(noted): it is in the log and in the client journal; recovery frees it.
        self.client.drop(1)

    def _lock_all(self, log: Log, state: int) -> dict[int, int]:
        """Lock the objects, in order, until one is in the way; the versions of those locked."""
        held: dict[int, int] = {}
        entries = log.entries()
        for index, at in enumerate(sorted(self.pages), self.first):
            self.go_on(index + 1)
            version = self.versions[at]
            read = self.reads.lock_of(at, version) if self.reads else version
            if read != version or not self.locks.acquire(at, version, state):
                self.busy = at
                break
            # CRASH(locked): whoever meets the lock aborts it when the lease is over.
            held[at] = version
            # ORDER: under the lock; the pointer stands still until the log is DOING.
            self.swings[at] = (self.endpoint.load(at + POINTER), self.swings[at][1])
            log.amend(entries[index], index, self.swings[at][0])
        return held

    def _hold_slots(self) -> bool:
        """Hold the slots, in order, and see that nobody else inserts a key; False: somebody is in
        the way."""
        for part in self.parts:
            for change in part.changes():
                self.busy = change.slot | SLOT
                if not part.hold(change):
                    return False
                # CRASH(locked): whoever meets the slot aborts it when the lease is over.
        for count, (slot, write) in enumerate(self.slots.items(), 1):
            self.go_on(count)
            self.busy = slot | SLOT
            # ORDER: held before we look: who inserts the key looks after he has put it down, too.
            if write.inserts and not write.store.is_alone(write.key, slot):
                return False
        self.busy = 0
        return True

    def validate(self) -> bool:
        """Whether all that was only read is as it was."""
        if self.reads is None:
            return True
        keys = set()
        if self.reads.keys:
            keys = {(write.store.link, write.key) for write in self.slots.values()}
        if self.reads.hold(self.pages, keys):
            return True
        self.busy = self.reads.changed.at
        return False

    def _abort(self, log: Log, held: dict[int, int], state: int) -> None:
        log.take_over()
        # CRASH(aborted): locks are held; recovery, or whoever meets them, releases them.
        for at, version in held.items():
            self.endpoint.cas(at, state, version)
        log.finish()
        log.give_back(self.heap, False)
        self.client.release(0)
