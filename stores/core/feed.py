"""The events of a store's changes, as its writers note them: `store.changes()`.

A store that is watched has a *feed*, the region NAME\\0changes on memory node 0. Each client slot
has a *place* in it, and a ring of bytes, which the slot's client alone writes. So a writer takes no
lock, and waits for no writer and no reader. Readers are in no shared memory
(stores/channels/changes.py).

feed_layout.py has the words.

Steps of a writer, within the operation of one attempt at a change
    1. write the entry, or several, behind `end`
    2. begun = the end of the entries
    3. change the store
    4. end = begun; wake the readers. If nothing has changed: begun = end

Invariants
    - begun is not below end, and differs from it only between steps 2 and 4 of one attempt
    - no entry is written over which has less than half a ring behind it: those of one attempt take
      half a ring at most. More are not written, and `begun` is a whole ring beyond `end`: then
      readers know that they missed something
    - an entry comes after its change: what a reader then finds in the store is that change or a
      later one, which has an entry of its own

A kill leaves behind
    before step 2    nothing: the entry is behind `begun`
    steps 2 to 4     begun is beyond end, and the owner is dead: no client knows whether the change
                     was made. Readers recover the dead client, so that it is decided, and take the
                     entries for UNSURE. The next client of the slot marks them so, and sets `end`
    after step 4     readers that sleep look after a while

An error in step 3 leaves the change as open as a kill: the writer marks its entries UNSURE itself.
An entry may be there without a change, of a batch that was put in part, for example; no change
takes effect without an entry.

A writer learns of the feed by the word DROPS, which its pin reads (base.py). Its bit WATCHED says
that a store of the pool has a feed; so no store looks for one in a pool without. The client that
makes the feed counts DROPS up, and waits for all operations that were pinned before. Then it sets
ON, and a reader begins at `end` of each place. The feed stays until its store is dropped.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import CLIENT_SLOTS, SLOT_SIZE
from limpet.shm.endpoint.states import former
from limpet.shm.errors import NodeFailed
from limpet.stores.core.feed_layout import (
    BEGUN,
    DELETED,
    END,
    KIND_SHIFT,
    LENGTH_MASK,
    NODE,
    OPEN,
    PLACE,
    PLACES,
    PUT_EVENT,
    SLEEPERS,
    UNSURE,
)
from limpet.stores.core.status import (
    AGAIN,
    DELETE,
    EXISTS,
    FULL,
    LOGGED_WRITE,
    MISSING,
    NO_MEMORY,
)


class Feed:
    """The feed of one store, as this process writes it. All methods are called in operations, or
    outside of any by the derived class."""

    def __init__(self, client: Any, endpoint: Any, address: int, clients: int, ring: int) -> None:
        self.client = client
        self.endpoint = endpoint
        self.address = address
        self.clients = clients
        self.ring = ring
        self.ident = 0
        """The client that the place was taken for."""
        self.place = 0
        self.entries = 0
        """Addresses of the own place and ring."""
        self.end = 0
        self.begun = 0
        self.tail = 0
        """The two words of the place, and the end of the entries that were written."""
        self.tails: list[int] = []
        """Of each key of `open_all`, the end of its entry."""
        self.news: Any = None
        """Where readers sleep: set by the derived class."""
        self.lost = False
        """Whether the feed's node is lost: then nothing is noted."""

    def open(self, key: bytes, mode: int) -> None:
        """Steps 1 and 2 for one key. `mode`: DELETE, or another one of status.py."""
        self.begin()
        self.note(key, mode)
        self.announce()

    def begin(self) -> None:
        """Begin to note the keys of an attempt."""
        try:
            if self.ident != self.client.ident:
                self._take_place()
            self._end_what_is_open()
            self.end = self.tail = self.endpoint.load(self.place + END)
        except NodeFailed:
            self.lost = True

    def note(self, key: bytes, mode: int) -> None:
        """Step 1, for one key more."""
        length = len(key)
        size = 8 + (length + 7 & ~7)
        if self.tail - self.end + size > self.ring // 2:
            self.tail = self.end + self.ring
        elif not self.lost:
            kind = DELETED if mode == DELETE else PUT_EVENT
            at = self.tail % self.ring
            try:
                self.endpoint.store(self.entries + at, kind << KIND_SHIFT | length)
                at = (at + 8) % self.ring
                room = self.ring - at
                if length <= room:
                    self.endpoint.write(self.entries + at, key)
                else:
                    self.endpoint.write(self.entries + at, key[:room])
                    self.endpoint.write(self.entries, key[room:])
                self.tail += size
            except NodeFailed:
                self.lost = True

    def announce(self) -> None:
        """Step 2."""
        if not self.lost:
            try:
                # ORDER: after the entries, and before the change.
                # CRASH(announced): no client knows whether the change follows; readers are told.
                self.endpoint.store(self.place + BEGUN, self.tail)
                self.begun = self.tail
            except NodeFailed:
                self.lost = True

    def open_all(self, keys: list[bytes], mode: int) -> None:
        """Steps 1 and 2 for several keys."""
        self.begin()
        self.tails = []
        for key in keys:
            self.note(key, mode)
            self.tails.append(self.tail)
        self.announce()

    def close_some(self, count: int, outcome: int) -> None:
        """Step 4 after `open_all`; only the first `count` of the keys were concerned."""
        if 0 < count <= len(self.tails):
            self.tail = self.tails[count - 1]
        self.close(outcome)

    def close(self, outcome: int) -> None:
        """Step 4, after this outcome of the attempt, or OPEN; nothing for a resigned client."""
        if not self.lost and self.ident == self.client.ident:
            try:
                if outcome in (AGAIN, NO_MEMORY, EXISTS, MISSING, FULL, LOGGED_WRITE):
                    self.endpoint.store(self.place + BEGUN, self.end)
                else:
                    self._publish(outcome)
            except NodeFailed:
                self.lost = True

    def _publish(self, outcome: int) -> None:
        if outcome == OPEN:
            self._mark_unsure(self.end, self.tail)
        # ORDER: after the change. By an atomic verb, before the look for sleepers.
        # CRASH(noted): sleepers look after a while.
        self.endpoint.swap(self.place + END, self.tail)
        if self.tail != self.begun:
            # CRASH(kept): the entries in between are taken for UNSURE.
            self.endpoint.store(self.place + BEGUN, self.tail)
        self._wake()

    def _wake(self) -> None:
        if self.endpoint.load(self.address) & SLEEPERS:
            self.news.wake()

    def _take_place(self) -> None:
        """Take the place of our client slot over, with what its last client has left open."""
        slot = (self.client.slot - CLIENT_SLOTS) // SLOT_SIZE
        self.place = self.address + PLACES + PLACE * slot
        self.entries = self.address + PLACES + PLACE * self.clients + self.ring * slot
        if self.endpoint.load(self.place) != self.client.ident:
            # The last client of the slot is recovered, so its changes are decided.
            self._end_what_is_open()
            # ORDER: last: until then readers see the dead owner of what is open.
            self.endpoint.store(self.place, self.client.ident)
        self.ident = self.client.ident

    def _end_what_is_open(self) -> None:
        """Tell of the changes that a client of this slot has begun, and that are decided: one that
        is dead, or our own, when a signal handler has cut off its step 4."""
        end = self.endpoint.load(self.place + END)
        begun = self.endpoint.load(self.place + BEGUN)
        if begun > end:
            self._mark_unsure(end, begun)
            # CRASH(settled): the next client of the slot does it again.
            self.endpoint.swap(self.place + END, begun)
            self._wake()

    def _mark_unsure(self, first: int, end: int) -> None:
        """Mark the entries from `first` to `end` as UNSURE, if they were written."""
        at = first
        while end - first < self.ring and at < end:
            word = self.endpoint.load(self.entries + at % self.ring)
            length = word & LENGTH_MASK
            self.endpoint.store(self.entries + at % self.ring, UNSURE << KIND_SHIFT | length)
            at += 8 + (length + 7 & ~7)

    # ---- as a handle of the pool ---------------------------------------------------------------

    def replaced(self, node: int) -> None:
        """`node` has new memory."""
        if node == NODE:
            self.lost = True
            self.address = former(self.address, node)

    def forget(self) -> None:
        """Look at the place anew."""
        self.ident = 0

    def let_go(self) -> None:
        """There is nothing to free."""


class Look:
    """An operation that looks at a store's feed."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __enter__(self) -> None:
        self.store.client.enter()
        done = False
        try:
            self.store.require_there()
            done = True
        finally:
            if not done:
                self.store.client.leave()
        self.store.client.note_frame()

    def __exit__(self, *error: object) -> None:
        self.store.endpoint.frame = None
        self.store.client.leave()
