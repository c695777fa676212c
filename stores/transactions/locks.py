"""Locks in the first words of objects, as in DrTM+H.

A lock word is 0, or the id of the client that holds it, which is never used again for another one.
It is taken by a CAS from 0, and given back by a plain write of 0.
"""

from __future__ import annotations

from typing import Any


class ObjectLocks:
    """The locks of a store's objects, for one client."""

    def __init__(self, store: Any) -> None:
        self.endpoint = store.endpoint
        self.client = store.client

    def word(self, at: int) -> int:
        """Address of the lock of the object there."""
        return at

    def holder(self, at: int) -> int:
        """The id of the client that holds the lock of the object there; 0: no client."""
        held: int = self.endpoint.load(self.word(at))
        return held

    def acquire(self, at: int) -> bool:
        """Lock the object there; False: another client has locked it."""
        return bool(self.endpoint.cas(self.word(at), 0, self.client.ident) == 0)

    def release(self, at: int) -> None:
        """Unlock the object there, which this client has locked."""
        self.endpoint.store(self.word(at), 0)
