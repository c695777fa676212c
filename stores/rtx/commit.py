"""The commit of a transaction with a log: optimistic concurrency control (rtx.txt 4.3, figure 8).

The figure is missing from the text that we have; rebuilt from the prose.

    1. write the new data of each object, and the log that names it (log.py); publish the log
    2. lock each object from the version that was read, in the order of addresses; one that has
       another version, or is locked, is a conflict
    3. validate: each object that was only read has the lock word and the pointer that it had, so
       it is not locked, or without a log, when its pointer counts (lllock.py)
    4. INIT -> DOING; carry it out; DONE; give back the old data

So all that was read was true at one moment, after 2 and before 4, and what is written follows from
it; hence transactions are strictly serialisable, with gets (sherman/lookup.py) among them.

A conflict, or being aborted by somebody who found the lease over: INIT -> ABORT, unlock to the
versions from before (others, to new ones), give back the new data.

Conflicts never wait, so nobody waits in a circle. All of it is one operation of the client.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from limpet.shm.errors import NodeFailed
from limpet.shm.layout import NODE_SHIFT
from limpet.shm.words import ADDRESS_MASK, REFERENCE_MASK
from limpet.stores.outcomes import AGAIN, DONE, NO_MEMORY
from limpet.stores.rtx.fields import LOGGED, POINTER
from limpet.stores.rtx.lllock import is_vacant, vacated
from limpet.stores.rtx.log import Entry, Log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.rtx.lllock import LLLocks
    from limpet.stores.sherman.page import Page
    from limpet.stores.sherman.staging import Staging


class Commit:
    """The write set of a transaction, and its commit. `begin` starts anew."""

    def __init__(self, pool: Any, locks: LLLocks) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator
        self.heap = pool.heap
        self.locks = locks
        self.reads: dict[int, tuple[int, int]] = {}
        """Lock and pointer of objects that were read in operations before this one."""
        self.begin(0)

    def begin(self, link: int) -> None:
        """Forget what is staged. `link`: how the hand names a store that resolves the log."""
        self.link = link
        self.pages: dict[int, Page | None] = {}
        """New data of objects; None: to be vacated."""
        self.versions: dict[int, int] = {}
        self.extents: list[tuple[Staging, int, bytes, bytes]] = []
        self.dropped: list[int] = []
        self.swings: dict[int, tuple[int, int]] = {}
        """Old and new pointer of each object."""
        self.busy = 0
        """The object that was in the way."""

    def expect(self, at: int, version: int) -> None:
        """An object has been read in this version; if it is written, it is locked from that."""
        self.versions.setdefault(at, version)

    def write(self, at: int, page: Page | None) -> None:
        """Stage the new data of an object; None: vacate it."""
        self.pages[at] = page

    # ---- committing -----------------------------------------------------------------------------

    def run(self) -> int:
        """Commit: DONE; AGAIN, if there is a conflict; NO_MEMORY. Nothing has happened then."""
        state = self.locks.draw(LOGGED)
        log = self._open(state)
        if log is None:
            return NO_MEMORY
        if not self._write_all(log, state):
            self._abort(log, {}, state)
            return NO_MEMORY
        log.publish(state, len(self.pages))
        # CRASH(published): nothing is locked; recovery aborts it.
        held = self._lock_all(log, state)
        self.endpoint.wait()
        if len(held) < len(self.pages) or not self.validate() or not log.begin():
            self._abort(log, held, state)
            return AGAIN
        # CRASH(decided): nothing is changed; whoever meets a lock, or recovers us, carries it out.
        self.endpoint.wait()
        try:
            log.finish()
            self.endpoint.wait()
            # CRASH(over): all is changed; recovery gives back what was dropped.
            log.give_back(self.heap, True)
        except NodeFailed:
            self._finish_without(held, state)
        self.client.release(0)
        return DONE

    def _finish_without(self, held: dict[int, int], state: int) -> None:
        """Carry out what is decided when the log was lost with its memory node."""
        for at in held:
            with contextlib.suppress(NodeFailed):
                self.locks.install(at, *self.swings[at])
                self.locks.release(at, state)
        for pointer in (*self.dropped, *(old for old, _ in self.swings.values())):
            if not is_vacant(pointer):
                self.heap.free(pointer & REFERENCE_MASK)

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Node and size of all memory that is needed, the log first."""
        count = len(self.pages) + len(self.extents) + len(self.dropped)
        # No smaller than a page, whose memory there is; that of another size may be missing.
        usual = max((page.size for page in self.pages.values() if page is not None), default=0)
        yield min(self.pages) >> NODE_SHIFT & 0xFF, max(usual, Log.size(count))
        for staging, at, key, value in self.extents:
            yield at >> NODE_SHIFT & 0xFF, staging.store.objects.size_of(key, value)
        for at, page in self.pages.items():
            if page is not None:
                yield at >> NODE_SHIFT & 0xFF, page.size

    def replenish(self, sparing: int = 0) -> None:
        """Have memory ready for all of it, `sparing` free blocks of each memory node.

        Outside of operations. Raises StoreFull.
        """
        sizes: dict[int, list[int]] = {}
        for node, size in self._sizes():
            sizes.setdefault(node, []).append(size)
        for node, some in sizes.items():
            self.allocator.replenish_all(node, some, 1, sparing)

    def _open(self, state: int) -> Log | None:
        node, size = next(self._sizes())
        reference = self.allocator.allocate(node, size, 1)
        if not reference:
            return None
        log = Log(self.locks, reference)
        log.open(state)
        # ORDER: it is one before the hand says so.
        self.client.aim(0, self.link)
        return log

    def _write_all(self, log: Log, state: int) -> bool:
        """Write all new data, and its entries in the log; False: there is no memory ready."""
        index = 0
        for staging, at, key, value in self.extents:
            node, size = at >> NODE_SHIFT & 0xFF, staging.store.objects.size_of(key, value)
            reference = self.allocator.allocate(node, size, 1)
            if not reference:
                return False
            staging.store.objects.write(reference, key, value)
            staging.place(at, key, reference)
            self._noted(log, index, Entry(0, 0, reference))
            index += 1
        for reference in self.dropped:
            log.note(index, Entry(0, reference, 0))
            index += 1
        self.first = index
        for at in sorted(self.pages):
            page = self.pages[at]
            if page is None:
                self.swings[at] = (0, vacated(state))
                log.note(index, Entry(at, 0, vacated(state)))
                index += 1
                continue
            reference = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, page.size, 1)
            if not reference:
                return False
            page.write(reference & ADDRESS_MASK, state)
            self.swings[at] = (0, reference)
            self._noted(log, index, Entry(at, 0, reference))
            index += 1
        return True

    def _noted(self, log: Log, index: int, entry: Entry) -> None:
        log.note(index, entry)
        # CRASH(noted): it is in the log and in the hand; recovery frees it.
        self.client.keep(1)

    def _lock_all(self, log: Log, state: int) -> dict[int, int]:
        """Lock the objects, in order, until one is in the way; the versions of those locked."""
        held: dict[int, int] = {}
        for index, at in enumerate(sorted(self.pages), self.first):
            version = self.versions[at]
            read = self.reads.get(at)
            if (read and read[0] != version) or not self.locks.acquire(at, version, state):
                self.busy = at
                break
            # CRASH(locked): whoever meets the lock aborts it when the lease is over.
            held[at] = version
            # ORDER: under the lock; the pointer stands still until the log is DOING.
            self.swings[at] = (self.endpoint.load(at + POINTER), self.swings[at][1])
            log.amend(index, self.swings[at][0])
        return held

    def validate(self) -> bool:
        """Whether all that was only read is as it was."""
        load = self.endpoint.load
        for at, (lock, pointer) in self.reads.items():
            if at not in self.pages and (load(at) != lock or load(at + POINTER) != pointer):
                self.busy = at
                return False
        return True

    def _abort(self, log: Log, held: dict[int, int], state: int) -> None:
        log.take_over()
        # CRASH(aborted): locks are held; recovery, or whoever meets them, releases them.
        for at, version in held.items():
            self.endpoint.cas(at, state, version)
        log.finish()
        log.give_back(self.heap, False)
        self.client.release(0)
