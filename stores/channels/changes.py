"""`store.changes()`: the changes of a store's keys, as events for any process.

stores/core/feed.py has the words of the feed, and the steps of writers. A reader is a position in
each ring, in the memory of its process: that of the entry that it reads next. So no writer waits
for a reader, and a dead one leaves nothing.

    an entry is read     if `end` is at most half a ring beyond it afterwards. Else it may be
                         another one by now: the reader goes on at `end`, and is told MISSED
    begun is above end   a change is under way. Its entries are read when it is over. If its client
                         is dead, the reader has that client recovered, and then reads the entries
                         as UNSURE, while the place has that owner

After an event, `store.get(key)` gives what that change, or a later one, has made of the key. Events
of one writer come in their order, and those of two writers in any order. So after the last event of
a key the store has the key's final value; but the event may say "put" of a key that is deleted.

A stopped writer's event comes when the writer goes on, or is dead. It delays no other event.
"""

from __future__ import annotations

import queue
from array import array
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.shm.endpoint.layout import DROPS, SLOTS_USED
from limpet.shm.errors import ParameterError, StoreCorrupt, StoreDropped, StoreFull
from limpet.shm.times import Seconds
from limpet.stores.channels.waiting import Wait, Waiting, deadline_of
from limpet.stores.contents import await_operations
from limpet.stores.core.feed import Feed, Look
from limpet.stores.core.feed_layout import (
    DELETED,
    END,
    KIND_SHIFT,
    LENGTH_MASK,
    NAME,
    NODE,
    ON,
    PLACE,
    PLACES,
    PUT_EVENT,
    UNSURE,
    WATCHED,
    feed_size,
)

if TYPE_CHECKING:
    from limpet.stores.core.base import Store

PUT: Final = "put"
DELETE: Final = "deleted"
DOUBT: Final = "unsure"
MISSED: Final = "missed"
WORDS: Final = {PUT_EVENT: PUT, DELETED: DELETE, UNSURE: DOUBT}


class Change(NamedTuple):
    """`what`: the key was "put", or "deleted"; "unsure": a process that was changing it died, or
    met an error, so look at the key; "missed", with None as the key: look at all keys."""

    key: Any
    what: str


class StoreFeed(Feed):
    """A feed with its readers' side."""

    def __init__(self, pool: Any, region: Any) -> None:
        clients = pool.parameters.clients
        ring = (region.size - PLACES) // clients - PLACE
        super().__init__(pool.client, pool.endpoint, region.address, clients, ring)
        self.news = Waiting(pool.endpoint, region.address, pool.parameters.multi_host)
        pool.handles.add(self)

    def at(self, slot: int) -> int:
        """Address of the place of a client slot."""
        return int(self.address) + PLACES + PLACE * slot

    def places(self) -> list[tuple[int, int, int]]:
        """Owner, begun and end of each place that may be in use. In an operation."""
        used = min(self.endpoint.load(SLOTS_USED), self.clients)
        words = array("Q", self.endpoint.read(self.at(0), PLACE * used))
        return [(words[at], words[at + 1], words[at + 2]) for at in range(0, len(words), 8)]

    def read(self, slot: int, first: int, end: int) -> bytes:
        """The bytes of a ring from `first` on to `end`, of half a ring at most. In an operation."""
        ring = int(self.ring)
        entries = self.at(self.clients) + ring * slot
        at, count = first % ring, end - first
        whole: bytes = self.endpoint.read(entries + at, min(count, ring - at))
        if len(whole) < count:
            whole += self.endpoint.read(entries, count - len(whole))
        return whole


class Changes:
    """The changes of a store's keys from some moment on, for a thread of this process, or
    several."""

    def __init__(self, store: Store, feed: StoreFeed, prefix: bytes) -> None:
        self.store = store
        self.feed = feed
        self.prefix = prefix
        self.news = feed.news
        self.key_of: Any = bytes
        """Makes a key of its bytes."""
        self.found: deque[tuple[bytes | None, str]] = deque()
        """Read, and not given yet. An event that a signal handler cuts off may be here twice."""
        with self.operation():
            # ORDER: `end`, and not `begun`: a change that is under way has its event.
            self.positions = [end for _, _, end in feed.places()]

    def operation(self) -> Any:
        """A look at the feed, as a context manager. Raises StoreDropped."""
        return Look(self.store)

    def get(self, block: bool = True, timeout: Seconds | None = None) -> Change:
        """The next change; waits for it, at most `timeout` seconds. Raises queue.Empty, and
        NodeFailed: memory node 0 was lost, and with it what was not read."""
        wait = Wait(self.news, deadline_of(block, timeout))
        while not self.found:
            with self.operation():
                wait.note()
                suspects = self._look()
            for slot, place in suspects:
                self._look_after(slot, place)
            if not self.found and not wait.pause():
                raise queue.Empty
        key, what = self.found.popleft()
        return Change(None if key is None else self.key_of(key), what)

    def get_nowait(self) -> Change:
        """`get` without waiting."""
        return self.get(False)

    def __iter__(self) -> Iterator[Change]:
        while True:
            yield self.get()

    def _look(self) -> list[tuple[int, tuple[int, int, int]]]:
        """Read what is new. The slots, with their places, of changes that are under way. In an
        operation."""
        suspects = []
        for slot, place in enumerate(self.feed.places()):
            if slot == len(self.positions):
                self.positions.append(0)
            _, begun, end = place
            if self.positions[slot] < end:
                self._read(slot, end)
            if self.positions[slot] < begun:
                suspects.append((slot, place))
        return suspects

    def _read(self, slot: int, end: int) -> None:
        """Read the entries of changes that are over. In an operation."""
        first, half = self.positions[slot], self.feed.ring // 2
        data = self.feed.read(slot, first, end) if end - first <= half else b""
        # ORDER: after the entries: later ones are written over these only when it is beyond them.
        now = self.store.endpoint.load(self.feed.at(slot) + END)
        if now - first > half:
            self._miss()
            self.positions[slot] = now
        else:
            self._take(data, 0)
            self.positions[slot] = end

    def _look_after(self, slot: int, place: tuple[int, int, int]) -> None:
        """If the client of a change that is under way is dead, take its entries for UNSURE."""
        owner, begun, end = place
        membership = self.store.pool.membership
        if membership.lives(owner):
            return
        # ORDER: recovered first, so that the change was made or is never made.
        self.store.recover()
        if membership.place(owner) is not None:
            return
        with self.operation():
            first = max(self.positions[slot], end)
            whole = begun - first <= self.feed.ring // 2
            data = self.feed.read(slot, first, begun) if whole else b""
            # ORDER: after the entries: the next client of the slot sets `end` first.
            if self.feed.places()[slot] != place:
                return
        if whole:
            self._take(data, UNSURE)
        else:
            self._miss()
        self.positions[slot] = begun

    def _take(self, data: bytes, kind: int) -> None:
        """Take these entries; `kind`, if it is not 0, in place of theirs. Raises StoreCorrupt."""
        taken: list[tuple[bytes, str]] = []
        at = 0
        while at < len(data):
            word = int.from_bytes(data[at : at + 8], "little")
            key = data[at + 8 : at + 8 + (word & LENGTH_MASK)]
            what = WORDS.get(kind or word >> KIND_SHIFT)
            if what is None or len(key) != word & LENGTH_MASK:
                raise StoreCorrupt(
                    f"{self.store.name}: an entry of its changes was damaged; drop the store"
                )
            at += 8 + (len(key) + 7 & ~7)
            if key.startswith(self.prefix):
                taken.append((key, what))
        self.found.extend(taken)

    def _miss(self) -> None:
        if not self.found or self.found[-1][1] != MISSED:
            self.found.append((None, MISSED))

    def __repr__(self) -> str:
        return f"<Changes of {self.store!r}, of keys with {self.prefix!r}>"


def watch(store: Store, prefix: bytes) -> Changes:
    """The changes of a store from now on. Raises StoreFull, NodeFailed, ParameterError."""
    pool = store.pool
    if pool.parameters.durable:
        raise ParameterError(
            f"{pool.url} is durable, and readers of changes would not survive a power cut"
        )
    pool.exclusively(lambda: _make_feed(store))
    with Look(store):
        feed: Any = store.feed
    if feed is None:  # dropped and made anew, or its node was
        raise StoreDropped(f"{store.name}: the memory for its changes was lost; open it again")
    return Changes(store, feed, prefix)


def _make_feed(store: Store) -> None:
    """Make the feed, if it is not there, and have all writers know it. Within `exclusively`.

    A client that drops the store waits for our pins, and then gives back the feed.
    """
    pool = store.pool
    size = feed_size(pool.parameters.clients, pool.parameters.node_size)

    def obtain() -> tuple[int, int]:
        region = pool.regions.obtain(NODE, store.name + NAME, size, pinned=True)
        # CRASH(made): the feed is not ON; the next client that watches goes on.
        return region.address + ON, pool.endpoint.load(region.address + ON)

    try:
        at, on = store.while_there(obtain)
    except StoreFull:
        await_operations(pool)  # then what was freed before can be used
        at, on = store.while_there(obtain)
    if not on:
        pool.endpoint.fetch_or(DROPS, WATCHED)
        await_operations(pool)
        # ORDER: when no operation is left that began without it.
        store.while_there(pool.endpoint.store, at, 1)
