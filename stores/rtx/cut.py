"""A second reading of what a transaction read: all of it at one moment, beside any writer.

A transaction that reads is optimistic (reads.py): when something that it has read was changed, its
function is called again. A transaction that reads much would never get through beside a writer,
however slow the writer is (R11). So after a few conflicts, what its last attempt has read in trees
is read before the next attempt begins, in one operation of the client:

    1. write a log (log.py) and publish it
    2. lock each leaf, from the version that it has: an entry of the log with no pointers, so that
       the leaf is only released, whatever becomes of the log
    3. read what is wanted in its node; go on to the leaves that follow, up to as many again
    4. see that the log is INIT still: no client has released a lock, so all of it was true together
    5. abort; release the locks to the versions from before, so no client is any the wiser

The function is called with that. What it reads besides in a leaf that was locked, and is as it was
then, was true at the same moment. All else is read, and validated, as always; if that is a
conflict, it is known for the next time. So each attempt gets further than those before it, and a
transaction that reads n keys takes O(n) attempts; one that scans them takes about log n.

No lock is waited for while others are held: after a few tries all are released. So no client waits
in a circle, in whatever order leaves are locked. No function of a user runs while they are.

A kill leaves behind: the log in the client journal, INIT or ABORT, and locked leaves; recovery
releases them, or a client that meets them when the lease is over (repair.py).

Known limits: keys of hash stores are not among it; a transaction that writes, too, still has to
find at its commit that nothing has changed since; and in a full pool there may be no memory for the
log.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.status import AGAIN, DONE, NO_MEMORY
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.entry_log import log_size
from limpet.stores.transactions.layout import INIT, LOCKED, LOGGED, STATE_MASK
from limpet.stores.transactions.log import Log
from limpet.stores.transactions.reads import ObjectRead
from limpet.stores.transactions.try_commit import abort, participants_of
from limpet.stores.transactions.tx_object import TXObj

TRIES_MAX: Final = 16
"""So often a lock is tried before all are released."""

Item = tuple[Any, ...]
"""Names a look: by the link of the store, and the key, and the end of a range."""


class Recheck(NamedTuple):
    """A look into a tree: for what key, in which leaf it was, and what gives its result."""

    store: Any
    tree: int
    key: bytes
    at: int
    what: Callable[[], Any]
    ranges: bool
    """Whether the result is pairs, and where the next leaf begins."""
    end: bytes | None


class Recalled(NamedTuple):
    """The result of a look, the object of its leaf, and how that was."""

    found: Any
    at: int
    read: ObjectRead


class Cut(Commit):
    """Locks that are taken to read under them."""

    def __init__(self, pool: Any, looks: dict[Item, Recheck]) -> None:
        """`looks`: those of ranges are added to, by the leaves that follow."""
        first = next(iter(looks.values()))
        super().__init__(pool, first.store.locks)
        self.store = first.store
        self.looks = looks
        self.room = 2 * len({look.at for look in looks.values()}) + 2
        """So many leaves are locked at most."""
        self.node = first.at >> NODE_SHIFT & 0xFF

    def take(self) -> tuple[int, dict[Item, Recalled]]:
        """DONE, and what the looks came to, all at one moment, but for those whose leaf is another
        one by now; AGAIN: a leaf is `busy`; NO_MEMORY. Within an operation."""
        for look in self.looks.values():
            look.store.require_there()
        self.begin(self.store.link)
        state = self.locks.draw(LOGGED)
        reference = self.allocator.coherent().allocate(self.node, log_size(self.room), 1)
        if not reference:
            return NO_MEMORY, {}
        log = Log(self.locks, reference)
        log.begin(state, self.link, True, [])
        log.write_down(self.room)
        self.endpoint.wait()
        log.name()
        log.publish(state, self.room)
        # CRASH(published): nothing is locked; recovery aborts it.
        held: dict[int, ObjectRead] = {}
        try:
            found = dict(self._read_all(log, state, held))
            whole = not self.busy and self._stands(log)
            abort(log, participants_of(log), state)
            log.close()
        except NodeFailed:
            for at, read in held.items():
                with contextlib.suppress(NodeFailed):
                    self.endpoint.cas(at, state, read.lock)
            raise
        return (DONE, found) if whole else (AGAIN, {})

    def replenish(self, sparing: int = 0, update: bool = False) -> None:
        """Have memory ready for the log. Outside of operations. Raises StoreFull."""
        wanted = [(self.allocator.coherent(), self.node, log_size(self.room))]
        self.have_ready(wanted, sparing, update)

    def _read_all(
        self, log: Log, state: int, held: dict[int, ObjectRead]
    ) -> Iterator[tuple[Item, Recalled]]:
        """The results of the looks, each in a leaf that is locked then; until one is `busy`."""
        waiting = deque(self.looks.items())
        behind: deque[tuple[Item, Recheck]] = deque()
        """Leaves that follow those of keys, in which nothing is wanted yet."""
        done: set[Item] = set()
        while waiting or behind:
            item, look = waiting.popleft() if waiting else behind.popleft()
            if item in done or (look.at not in held and len(held) == self.room):
                continue
            done.add(item)
            self.go_on(len(done))
            if not look.store.trees.has_object(look.tree, look.at):
                continue  # there was no leaf after the last one, or its memory node was replaced
            if look.at not in held and not self._lock(log, state, look, held):
                self.busy = look.at
                return
            read = held[look.at]
            # An object that is vacant, or not the key's leaf any more, is looked for in the attempt
            if not look.store.tx_keys.recall(look.tree, look.at, read.lock, read.pointer, look.key):
                continue
            found, page = look.what(), look.store.leaf.page
            yield item, Recalled(found, look.at, read)
            after = found[1] if look.ranges else page.high()
            if after is None or (look.ranges and look.end is not None and after >= look.end):
                continue
            follows = look._replace(key=after, at=page.sibling())
            if look.ranges:
                name = (*item[:2], after, *item[3:])
                self.looks.setdefault(name, follows)
                waiting.append((name, follows))
            elif look.what is _nothing or follows.at not in held:
                behind.append(((follows.at,), follows._replace(what=_nothing)))

    def _stands(self, log: Log) -> bool:
        """Whether no client has decided the log, and released what is locked."""
        return log.state() & STATE_MASK == INIT

    def _lock(self, log: Log, state: int, look: Recheck, held: dict[int, ObjectRead]) -> bool:
        """Lock the leaf of a look; False: another client has it locked."""
        leaf = TXObj(self.locks, look.at, 0, 0)
        assert log.noted is not None
        log.noted.append(leaf)
        log.note(leaf)
        endpoint = self.endpoint
        for _ in range(TRIES_MAX):
            ticket = endpoint.post_load(look.at)
            # ORDER: the log has the leaf before it is locked.
            endpoint.wait()
            leaf.version = endpoint.result(ticket)
            if leaf.version & LOCKED:
                continue
            leaf.post_lock(state)
            # ORDER: under the lock, where the pointer stands still.
            ticket = endpoint.post_load(look.at + POINTER)
            endpoint.wait()
            if leaf.has_locked():
                held[look.at] = read = ObjectRead()
                read.note(look.at, leaf.version, endpoint.result(ticket), look.store, look.key)
                return True
        return False


def _nothing() -> None:
    """The look in a leaf that is locked because it follows another one."""
