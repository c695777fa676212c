"""Recovery of changes in place by their value logs, with all clients stopped.

A client that recovers one with a log in the client journal stops the table that the log is of
(stop.py), waits until no client is in it, carries out what is decided or undoes it (log.py), frees
what that leaves behind, and lets all go on. So of several that recover one client, one is at it at
a time; and what it writes in place no other client is reading or writing. It may be killed at it;
the next one begins anew.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt
from limpet.stores.baselines.dtx.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.baselines.dtx.locks import ObjectLocks
    from limpet.stores.baselines.dtx.log import ValueLog
    from limpet.stores.entry_log import Entry


class Recovery:
    """Recovery by one handle of a store. The store gives

    value_log(reference)    the log there
    is_log(link_address)    whether a pair of a client journal with this link_address is a
    log of it
    stop_words()            addresses of the words by which each table is stopped (stop.py)
    """

    def __init__(self, store: Any, locks: ObjectLocks) -> None:
        self.store = store
        self.locks = locks
        self.pool = store.pool
        self.endpoint = store.endpoint
        self.client = store.client
        self.heap = store.heap

    # ---- pairs of a client journal
    # ------------------------------------------------------------------------

    def resolved(self, reference: int) -> bool:
        """Carry out or undo the change whose log this is: of a dead client, or our own.

        Whether the log is to be kept.
        """
        log = self.store.value_log(reference)
        try:
            if log.owner() == self.client.ident:
                self._carry_out(log)
            else:
                self._recover(log)
        except (NodeFailed, StoreCorrupt, AddressError):
            return True  # it is lost with its memory node; or damaged, and recovery goes on
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
        """Look for whom we wait: who has stopped the table, or locked the object at `at`, unless
        that is 0. False: no client has. Outside of operations."""
        membership = self.pool.membership
        membership.sweep_sometimes()
        if Stop(self.store, table).look_for():
            return True
        holder = self.locks.holder(at) if at else 0
        if holder:
            membership.gone(holder, f"the object at {at:#x} of {self.store.name!r}")
        return holder != 0

    # ---- what the dead leave --------------------------------------------------------------------

    def has_stopped(self, ident: int) -> bool:
        """Whether this client has stopped a table."""
        found = False
        for word in self.store.stop_words():
            with contextlib.suppress(NodeFailed):
                found |= self.endpoint.load(word) == ident
        return found

    def logs_in(self, slot: int, owner: int = 0) -> Iterator[tuple[ValueLog, list[Entry]]]:
        """The logs in the client journal of a client slot, with their entries; with `owner`, only
        those of that client. Left out are those that are lost, or damaged: it may be memory again
        by now."""
        for reference, link_address in journal_of(self.endpoint, slot):
            if self.store.is_log(link_address):
                log = self.store.value_log(reference)
                with contextlib.suppress(NodeFailed, StoreCorrupt, AddressError):
                    entries = log.entries()
                    if owner in (0, log.owner()):
                        yield log, entries
