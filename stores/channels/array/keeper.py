"""Clients that keep the memory of arrays for the ndarrays of a process: `Keeper`.

An ndarray of `numpy()` or `parts()` outlives the operation that made it, the array, and the pool
handle. So it is not that handle's client that keeps its memory but a client of its own, a keeper,
with a handle that this process opens for this. A keeper has a record (shm/clients/holds.py) for
each region with ndarrays, so that a client that removes the array leaves the region in use. The
record is given back when the last ndarray of it in this process is gone, at any moment at which the
garbage collector finds that. Its memory is free then, if no other process has ndarrays of it.

A keeper is dead when its process is, and is recovered as any client is: its records are let go.
While Python ends, it stays: other threads and finalizers may still use the memory.

Forks. A child has its parent's ndarrays. It takes records of its own in the fork, before any other
code of it runs; until it has done so, its parent gives none back: it waits for the end of a pipe.
In its `fork` the parent waits FORK_MS at most, since one that makes a daemon ends right after it.
If the parent is dead before the child has records, and its own are gone, the memory may be
another's, and no ndarray can be taken from a process: the child ends itself. If the child cannot
have a slot, it has no records, and the parent keeps the memory until the child has ended. If there
is no descriptor left for a pipe, the parent keeps the memory until its own end.

Limit: when the parent of a child without records is killed, nobody keeps the memory for that child.

A kill leaves behind: records, which recovery lets go.
"""

from __future__ import annotations

import collections
import os
import select
import signal
import threading
import weakref
from typing import Any, Final

from limpet.shm.endpoint.slots import RECORDS_COUNT
from limpet.shm.endpoint.words import LINK_MASK, VIEWED
from limpet.shm.errors import NodeFailed, PoolNotFound

FORK_MS: Final = 1000
"""Less than a lease of 2 s: a process may fork within an operation, in a signal handler."""


class Keeper:
    """A client of this process that keeps up to RECORDS_COUNT regions."""

    def __init__(self, pool: Any) -> None:
        """`pool`: a handle of the same pool. Raises as `open` does."""
        self.pool = type(pool).open(pool.url, any_owner=pool.options.any_owner)
        if self.pool.uuid != pool.uuid:
            raise PoolNotFound(f"{pool.url} was destroyed, and another pool of that name created")
        self.pool.stay_to_the_end()
        self.records: dict[int, list[int]] = {}
        """By reference: the record, and how many ndarrays of this process need it. The record is 0
        until it is taken, and where a parent keeps the region."""
        self.children: list[int] = []
        """Pipes whose other end a child has, until it has records of its own."""
        self.stays = False
        """Whether there is a child without a pipe, so that nothing is given back any more."""
        self.pipes: dict[int, tuple[int, int]] = {}
        """Of threads that are forking, by their numbers."""
        self._waits = False
        """Whether a thread waits for the children."""
        self._dropped: collections.deque[int] = collections.deque()
        self._lock = threading.Lock()
        _keepers.add(self)

    def has_room(self, reference: int) -> bool:
        return reference in self.records or len(self.records) < RECORDS_COUNT

    def hold(self, reference: int) -> None:
        """Keep a region, which is linked. The caller looks at the link again afterwards, and drops
        it if that has changed."""
        with self._lock:
            found = self.records.get(reference)
            if found is None:
                found = self.records[reference] = [0, 0]
            if not found[0]:
                found[0] = self._take(reference, found)
            # ORDER: last: what a signal handler cuts off is kept too long, never too short.
            found[1] += 1
        self.settle()

    def _take(self, reference: int, found: list[int]) -> int:
        with self.pool.client:
            return int(self.pool.client.holds.take(reference | VIEWED, found))

    def drop(self, reference: int) -> None:
        """One ndarray fewer. Called at any moment, in any thread."""
        self._dropped.append(reference)
        self.settle()

    def settle(self) -> None:
        """Give back what no ndarray needs, or have a thread do that which waits for children."""
        while self._dropped and not self._waits and not self.stays:
            if not self._lock.acquire(blocking=False):
                return  # a thread is at it, perhaps this one, and comes by here
            try:
                if self._has_children():
                    self._waits = True
                    threading.Thread(target=self._wait, name="limpet-keeper", daemon=True).start()
                while self._dropped and not self._waits:
                    self._drop_one(self._dropped.popleft())
            finally:
                self._lock.release()

    def _drop_one(self, reference: int) -> None:
        found = self.records[reference]
        found[1] -= 1
        if not found[1]:
            del self.records[reference]
            if not found[0]:
                return
            try:
                with self.pool.client:
                    self.pool.client.holds.give_back(found)
            except NodeFailed:
                pass  # it is lost with its node

    # ---- forks ----------------------------------------------------------------------------------

    def _has_children(self, timeout_ms: int | None = 0) -> bool:
        """Whether a child has no records of its own yet. None: wait until none is left."""
        while self.children:
            poll = select.poll()
            poll.register(self.children[0], 0)
            if not poll.poll(timeout_ms):
                return True
            os.close(self.children.pop(0))
        return False

    def _wait(self) -> None:
        self._has_children(None)
        self._waits = False
        self.settle()

    def disown(self) -> dict[int, int]:
        """In a forked child, first: it has no record yet. The records of its parent."""
        theirs = {reference: found[0] for reference, found in self.records.items()}
        for found in self.records.values():
            found[0] = 0
        self._lock = threading.Lock()
        self._waits = self.stays = False
        return theirs

    def inherit(self, theirs: dict[int, int]) -> None:
        """In a forked child: keep as a client of its own what the parent keeps."""
        client = self.pool.client
        slot, word = client.slot, client.word
        for reference, record in theirs.items():
            found = self.records[reference]
            found[0] = self._take(reference, found)
            # ORDER: after our record: a client that frees it from now on finds that.
            if record and (
                self.pool.endpoint.load(slot) != word
                or (self.pool.endpoint.load(record) ^ reference) & LINK_MASK
            ):
                os.kill(os.getpid(), signal.SIGKILL)


_keepers: Final[weakref.WeakSet[Keeper]] = weakref.WeakSet()
_staying: Final[set[Keeper]] = set()
"""Those that stay without an ndarray, too."""


def _before_fork() -> None:
    for keeper in list(_keepers):
        if keeper.records:
            try:
                keeper.pipes[threading.get_ident()] = os.pipe()
            except OSError:  # no descriptor is left
                keeper.stays = True
                _staying.add(keeper)


def _in_parent() -> None:
    for keeper in list(_keepers):
        ends = keeper.pipes.pop(threading.get_ident(), None)
        if ends is None:
            continue
        read, write = ends
        os.close(write)
        poll = select.poll()
        poll.register(read, select.POLLIN)
        # A byte is of a child that gets no records. Of one that has them the end is closed.
        if any(event & select.POLLIN for _, event in poll.poll(FORK_MS) or [(read, select.POLLIN)]):
            keeper.children.append(read)
        else:
            os.close(read)


def _in_child() -> None:
    _staying.clear()
    failed = None
    for keeper in list(_keepers):
        mine = keeper.pipes.pop(threading.get_ident(), None)
        for ends in [keeper.children, *keeper.pipes.values()]:
            for end in ends:
                os.close(end)
        keeper.children.clear()
        keeper.pipes.clear()
        theirs = keeper.disown()
        if mine is not None:
            os.close(mine[0])
        try:
            keeper.inherit(theirs)
        except BaseException as error:  # a full pool, or a signal handler that raises
            failed = failed or error
            if mine is not None:  # and the end stays open as long as this process
                os.write(mine[1], b"-")
        else:
            if mine is not None:
                os.close(mine[1])
    if failed is not None:
        raise failed


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
