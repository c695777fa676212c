"""Recovery of changes in place by their value logs, with all clients stopped.

A dead client may have a log in its client journal. The client that recovers it stops the log's
table (stop.py), waits until no client is in it, carries out the change if it is decided or undoes
it (log.py), frees the leftovers, and lets all clients go on. So only one client at a time recovers
the dead one, and no other client reads or writes the memory that it writes in place. If it is
killed, the next one begins anew.
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

    def logs_in(self, slot: int, owner: int = 0) -> Iterator[tuple[ValueLog, list[Entry]]]:
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
