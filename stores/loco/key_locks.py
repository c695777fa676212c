"""The locks of a kvstore: an array of ticket locks in each table (LOCO section 6).

They are the ticket locks of channels (ticket_lock.py), in the operations of the store. Where no
client waits, a lock is taken and released within the operation that needs it.

A waiting client passes over a dead one, as in every ticket lock. A client that stands still for a
lease with a lock of keys is killed, or waited for, by the pool's policy (membership.py): it is in
an operation of this store, and those are short. Another operation, another journal state, and
another acquisition of the lock are other holds, not the same one.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

from limpet.stores.channels.channel import Channel
from limpet.stores.channels.lock.ticket_layout import HOLDER
from limpet.stores.channels.lock.ticket_lock import TicketLock

LOOK_S: Final = (0.005, 0.05)
"""Bounds of the wait before a look at the lock's holder, which is a quarter of a lease."""


class KeyLocks(Channel):
    """The locks of one store. They have no region of their own, and are removed with the store."""

    def __init__(self, store: Any) -> None:
        # The locks must not keep their store alive.
        self.store: Callable[[], Any] = weakref.ref(store)
        self.pool = store.pool
        self.client = store.client
        self.endpoint = store.endpoint
        self.membership = store.pool.membership
        self.name = store.name
        self.patience_s = max(LOOK_S[0], min(LOOK_S[1], self.membership.lease_s / 4))

    def enter(self) -> None:
        self.client.enter()
        there = False
        try:
            self.store().require_there()
            there = True
        finally:
            if not there:
                self.client.leave()

    def wait_for(self, lock: TicketLock, journal: int) -> None:
        """Take a lock that another client has. Outside of operations."""
        # ORDER: before we have it: until the operation begins, only this tells the hold from an
        # earlier one of ours.
        self.pool.exclusively(self.membership.progress)
        while not lock.acquire(self.patience_s):
            self.pool.exclusively(functools.partial(self._look_after, lock, journal))

    def _look_after(self, lock: TicketLock, journal: int) -> None:
        """Fence the holder of a lock if it stands still for a lease; recover it if it is dead."""
        word, hold = self.store().while_there(self._read, lock, journal)
        holder = word & HOLDER
        if holder not in (0, self.client.ident):
            self.membership.gone(holder, f"lock {lock.address:#x} of {self.name!r}", hold)

    def _read(self, lock: TicketLock, journal: int) -> tuple[int, int]:
        """The word of a lock, and that of its journal."""
        return self.endpoint.load(lock.address), self.endpoint.load(journal)
