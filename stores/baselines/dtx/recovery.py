"""Recovery of changes in place by their value logs, with all clients stopped.

A dead client may have a log in its client journal. The client that recovers it stops the log's
table, waits until no client is in it, carries out the change if it is decided or undoes
it (log.py), frees the leftovers, and lets all clients go on. So only one client at a time recovers
the dead one, and no other client reads or writes the memory that it writes in place. If it is
killed, the next one begins anew.

Stopping all clients of a table (DrTM+H: its recovery is for all of them). A table is the tree, or
the directory, that a store has on a memory node. At the end of its region there are a word that
names the client that has stopped it, or 0; and a word for each slot of the pool, in which its
client writes its id when it is about to stop the table, or has stopped it. All are 0 most of the
time.

A client that begins an operation looks at the first word when it is pinned. So either the stopping
client sees its pin, or it sees the word, and leaves again. The stopping client waits until every
client that was pinned then has left its operation. A client that stands still is fenced by the
policy of the pool.

The stopping client does not wait for clients that do nothing in the table while they are pinned,
and may wait for it:
    - dead clients
    - a client that stops a table of any such store of the pool: it recovers another client, and
      does nothing in a table that it has not stopped
    - a client that leads a change of the view, or is parked for one (view.py)

A waiting client updates its progress word, so it is not mistaken for a stopped one.

A client takes the word over only from a client that is provably dead (membership.py), so the holder
of the word is alone.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.layout import NODE_SHIFT, slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN, client_id
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.baselines.dtx.log import ValueLog
    from limpet.stores.transactions.entry_log import LogEntry
    from limpet.stores.transactions.locks import ObjectLocks


def stop_size(clients: int) -> int:
    """Bytes of these words, in a pool with so many slots."""
    return 8 + 8 * clients


class Stop:
    """The word of one table, for one client. `at`: its address."""

    def __init__(self, store: Any, table: int) -> None:
        self.store = store
        self.pool = store.pool
        self.endpoint = store.endpoint
        self.ident = store.client.ident
        self.at: int = store.stop_words()[table]
        self.what = f"what {store.name!r} has on memory node {table}"

    def take(self) -> None:
        """Stop the table, and wait until no client is in it. Pinned, in the recovery of a
        client."""
        self.endpoint.store(self._mine(), self.ident)
        # ORDER: before the word is ours: otherwise this recovery could be taken for an earlier one
        # of ours with the same pin.
        self.pool.membership.progress()
        attempt = 0
        while not self._try():
            attempt += 1
            self._wait(attempt)
        # CRASH(stopped): a client that meets the word finds its owner dead, and takes it over.
        self._await_all()

    def give_back(self) -> None:
        """Let all clients go on, even if a signal handler raises; else all would wait for us."""
        try:
            self._clear()
        except BaseException:
            self._clear()
            raise

    def look_for(self) -> bool:
        """Check the client that has stopped the table, and let the table go on if it is no client
        any more; False: no client has stopped it."""
        there = self.store.while_there
        holder: int = there(self.endpoint.load, self.at)
        if holder and self.pool.membership.gone(holder, self.what):
            there(self.endpoint.cas, self.at, holder, 0)
        return holder != 0

    def _try(self) -> bool:
        holder = self.endpoint.cas(self.at, 0, self.ident)
        if holder in (0, self.ident):
            return True
        if not self.pool.membership.ended(holder, self.what):
            return False
        return bool(self.endpoint.cas(self.at, holder, self.ident) == holder)

    def _clear(self) -> None:
        self.endpoint.cas(self.at, self.ident, 0)
        self.endpoint.store(self._mine(), 0)

    def _mine(self) -> int:
        return self.at + 8 + 8 * (self.ident >> INCARNATION_BITS)

    def _wait(self, attempt: int) -> None:
        self.pool.membership.progress()
        self.endpoint.pause(attempt)

    @functools.cached_property
    def _words(self) -> list[int]:
        """The words of all tables of all such stores."""
        found = self.pool.of_stores(lambda store: store.stop_words(), lambda cls: cls.stops)
        return [word for words in found for word in words]

    def _recovers(self, slot: int, ident: int) -> bool:
        """Whether that client, of that slot, stops a table, or is about to."""
        for word in self._words:
            with contextlib.suppress(NodeFailed):
                if self.endpoint.load(word + 8 + 8 * slot) == ident:
                    return True
        return False

    def _await_all(self) -> None:
        # ORDER: the pins before `_words`: of a later store, none of these recovers a client.
        for laggard in self.pool.grace.pinned():
            attempt = 0
            while not self._is_out(laggard):
                attempt += 1
                self._wait(attempt)

    def _is_out(self, laggard: Any) -> bool:
        """Whether a client that was pinned has left the operation, or does nothing in it."""
        membership, view = self.pool.membership, self.pool.view
        slot, word = laggard.slot, laggard.word
        ident = client_id(slot, word)
        if membership.ours(slot) or self.endpoint.load(slot_address(slot) + PIN) != laggard.pin:
            return True
        if membership.dead(slot, word) or view.concerns(slot, ident) or self._recovers(slot, ident):
            return True
        return bool(membership.end_if_still(self.what, laggard, self.what))


class Recovery:
    """Recovery by one handle of a store. The store gives

    value_log(reference)    the log there
    is_log(link_address)    whether a pair of a client journal with this link_address is a
    log of it
    stop_words()            addresses of the words by which each table is stopped
    """

    def __init__(self, store: Any, locks: ObjectLocks) -> None:
        self.store = store
        self.locks = locks
        self.pool = store.pool
        self.endpoint = store.endpoint
        self.client = store.client
        self.heap = store.heap

    # ---- pairs of a client journal --------------------------------------------------------------

    def resolved(self, reference: int) -> bool:
        """Carry out or undo the change of this log, of a dead client or our own.

        Whether the log is to be kept.
        """
        log = self.store.value_log(reference)
        try:
            if log.owner() == self.client.ident:
                self._carry_out(log)
            else:
                self._recover(log)
        except (NodeFailed, StoreCorrupt, AddressError):
            return True  # lost with its memory node, or damaged: recovery goes on without it
        return False

    def _carry_out(self, log: ValueLog) -> None:
        log.give_back(self.heap, log.settle())

    def _recover(self, log: ValueLog) -> None:
        stop = Stop(self.store, log.reference >> NODE_SHIFT & 0xFF)
        try:
            stop.take()
            self._carry_out(log)
        finally:
            with contextlib.suppress(NodeFailed):
                stop.give_back()

    def listed(self, reference: int) -> list[int]:
        """References to objects that a log stands for."""
        try:
            entries = self.store.value_log(reference).entries()
        except StoreCorrupt:
            return []
        return [each for entry in entries for each in (entry.old, entry.new) if each]

    # ---- waiting --------------------------------------------------------------------------------

    def look_for(self, table: int, at: int) -> bool:
        """Check the client that we wait for, which has stopped the table or, unless `at` is 0,
        locked the object there. False: no client has. Outside of operations."""
        membership = self.pool.membership
        membership.sweep_sometimes()
        if Stop(self.store, table).look_for():
            return True
        holder = self.store.while_there(self.locks.holder, at) if at else 0
        if holder:
            membership.gone(holder, f"the object at {at:#x} of {self.store.name!r}")
        return holder != 0

    # ---- logs of dead clients -------------------------------------------------------------------

    def has_stopped(self, ident: int) -> bool:
        """Whether this client has stopped a table."""
        found = False
        for word in self.store.stop_words():
            with contextlib.suppress(NodeFailed):
                found |= self.endpoint.load(word) == ident
        return found

    def logs_in(self, slot: int, owner: int = 0) -> Iterator[tuple[ValueLog, list[LogEntry]]]:
        """The logs in the client journal of a client slot, with their entries; with `owner`, only
        those of that client. Lost or damaged logs are left out: their memory may have another use
        by now."""
        for reference, link_address in journal_of(self.endpoint, slot):
            if self.store.is_log(link_address):
                log = self.store.value_log(reference)
                with contextlib.suppress(NodeFailed, StoreCorrupt, AddressError):
                    entries = log.entries()
                    if owner in (0, log.owner()):
                        yield log, entries
