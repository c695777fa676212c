"""Clients that keep memory for the ndarrays and memoryviews of a process: `Keeper`.

An ndarray of an array's `numpy()` or `parts()`, or the memoryview of a value in place
(`ValueView.memory`), outlives the operation that made it, the array or key, and the pool handle. So
it is not that handle's client that keeps its memory but a client of its own, a keeper, with a
handle that this process opens for this. A keeper has a record (shm/clients/holds.py) for each
object with ndarrays or memoryviews, so that a client that removes the array, or replaces the value,
leaves the object in use. The record is given back when the last of them in this process is gone, at
any moment at which the garbage collector finds that. Its memory is free then, if no other process
has any of it.

The object of an array is linked when a keeper takes its record, and the caller looks at the link
again. That of a value is held by the caller until the keeper has its record: if it is not linked
any more, the caller, who frees it, finds the keeper's record, and hands that on.

A keeper is opened when all others have RECORDS_COUNT objects. For values a handle opens no more
than its share of the pool's clients (`Keepers.memory`).

A keeper is dead when its process is, and is recovered as any client is: its records are let go.
While Python ends, it stays: other threads and finalizers may still use the memory.

Forks. A child has its parent's ndarrays. It takes records of its own in the fork, before any other
code of it runs; until it has done so, its parent gives none back: it waits for the end of a pipe.
In its `fork` the parent waits FORK_MS at most, since one that makes a daemon ends right after it.
If the parent is dead before the child has records, and its own are gone, the memory may be
another's, and no ndarray can be taken from a process: the child ends itself. If the child cannot
have a slot, it has no records, and the parent keeps the memory until the child has ended. If there
is no descriptor left for a pipe, the parent keeps the memory until its own end.

Limit: when the parent of a child without records is killed, no client keeps the memory for the
child.

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

import numpy as np

from limpet.shm.endpoint.fabric import Watched
from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK
from limpet.shm.endpoint.slots import RECORDS_COUNT
from limpet.shm.endpoint.words import LINK_MASK, VIEWED
from limpet.shm.errors import ClientError, NodeFailed, PoolClosed, PoolError, PoolNotFound

FORK_MS: Final = 1000
"""Less than a lease of 2 s: a process may fork within an operation, in a signal handler."""
CLIENTS_SHARE: Final = 32
"""Keepers for values are at most this share of a pool's clients: others have to get in, too."""


class Keeper:
    """A client of this process that keeps up to RECORDS_COUNT objects."""

    def __init__(self, pool: Any) -> None:
        """`pool`: a handle of the same pool. Raises as `open` does."""
        self.pool = type(pool).open(pool.url, any_owner=pool.options.any_owner)
        if self.pool.uuid != pool.uuid:
            raise PoolNotFound(f"{pool.url} was destroyed, and another pool of that name created")
        self.pool.stay_to_the_end()
        self.records: dict[int, list[int]] = {}
        """By reference: the record, and how many views in this process need it. The record is 0
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
        """Keep an object, which is linked, or which the caller holds. If it was linked, the caller
        looks at the link again afterwards, and drops it if that has changed."""
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
        """One view fewer. Called at any moment, in any thread."""
        self._dropped.append(reference)
        self.settle()

    def settle(self) -> None:
        """Give back what no view needs, or have a thread do that which waits for children."""
        while self._dropped and not self._waits and not self.stays:
            if not self._lock.acquire(blocking=False):
                return  # a thread is at it, perhaps this one, and comes by here
            try:
                if self._has_children():
                    self._waits = True
                    threading.Thread(target=self._wait, name="limpet-keeper", daemon=True).start()
                while self._dropped and not self._waits:
                    self.records[self._dropped[0]][1] -= 1
                    self._dropped.popleft()
                if not self._waits:
                    self._give_back()
            finally:
                self._lock.release()

    def _give_back(self) -> None:
        """Give back the records that no view needs, also of a `hold` that a signal handler cut
        off."""
        for reference, found in list(self.records.items()):
            if found[1] > 0:
                continue
            try:
                with self.pool.client:
                    self.pool.client.holds.give_back(found)
            except NodeFailed:
                pass  # it is lost with its node
            # ORDER: last: it may be given back twice, if it is cut off here.
            del self.records[reference]

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


class Keepers:
    """The keepers of a pool handle, and the mapped memory that is used without verbs."""

    def __init__(self) -> None:
        self.all: list[Keeper] = []
        self._nodes: weakref.WeakValueDictionary[tuple[int, int], Any] = (
            weakref.WeakValueDictionary()
        )
        """Each node's memory as an ndarray, by node and mapping, as long as a part of it is used.
        """
        self._last: Any = None
        """The one that was used last: to make it again takes longer than all else."""

    def keeper(self, pool: Any, reference: int, most: int = 0) -> Keeper | None:
        """One that can keep this object; with `most`, None instead of more keepers than that.
        Raises as `open` does."""
        for keeper in self.all:
            keeper.settle()
            if keeper.has_room(reference):
                return keeper
        if most and len(self.all) >= most:
            return None
        self.all.append(Keeper(pool))
        return self.all[-1]

    def mapped(self, pool: Any, at: int, size: int) -> Any:
        """Bytes of shared memory, as an ndarray that keeps them mapped. NodeFailed, PoolClosed."""
        node = at >> NODE_SHIFT
        segments = [one for one in pool.segments() if one.index == node]
        if not segments:
            raise NodeFailed(node, "its memory is not mapped")
        segment = segments[0]
        place = node, id(segment.map)
        whole: Any = self._nodes.get(place)
        if not size:  # may be at the very end
            return np.empty(0, np.uint8)
        if whole is None:
            try:
                watched: Any = Watched(segment.map, segment.size, segment.watched_fd)
            except ValueError as error:  # its mapping is released
                raise PoolClosed(
                    f"{pool.url}: this handle was closed; open the pool again"
                ) from error
            whole = self._nodes[place] = np.frombuffer(watched, np.uint8)
        self._last = whole
        # By `frombuffer` of a memoryview: else numpy takes `whole` for the base of what is made of
        # the result, and the result would be gone too early.
        return np.frombuffer(memoryview(whole), np.uint8, size, at & OFFSET_MASK)

    def memory(self, pool: Any, reference: int, at: int, size: int) -> memoryview | None:
        """The value in an object that the caller holds, read-only; it keeps the object, and what is
        made of it does. None: the keepers have all that they can have, which is a CLIENTS_SHARE of
        the pool's clients, or no client can open the pool."""
        with _choosing:
            try:
                most = max(1, pool.parameters.clients // CLIENTS_SHARE)
                keeper = self.keeper(pool, reference, most)
            except (ClientError, PoolError):
                return None  # no client can open the pool now, as after the loss of a node
            if keeper is None:
                return None
            keeper.hold(reference)
        found = None
        try:
            made = self.mapped(pool, at, size)
            made.flags.writeable = False
            weakref.finalize(made, keeper.drop, reference).atexit = False
            found = memoryview(made)
        finally:
            if found is None:
                keeper.drop(reference)
            if pool.closed:
                self.let_go()  # `close` may have done so before there was this keeper
        return found

    def let_go(self) -> None:
        """The pool's handle was closed: a keeper stays as long as there are views that need it."""
        for keeper in self.all:
            keeper.settle()
        self.all.clear()
        self._last = None


_choosing = threading.RLock()
"""Held from the choice of a keeper until it has the object."""
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
    global _choosing
    _choosing = threading.RLock()
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
