"""Locks in the first words of objects, as in DrTM+H.

A lock word is 0, or the id of the client that holds it, which is never used again for another one.
It is taken by a CAS from 0, and given back by a plain write of 0. Both are posted.
"""

from __future__ import annotations

from array import array
from typing import Any


class ObjectLocks:
    """The locks of a store's objects, for one client."""

    def __init__(self, store: Any) -> None:
        self.endpoint = store.endpoint
        self.client = store.client
        self.zero = array("Q", (0,))

    def word(self, at: int) -> int:
        """Address of the lock of the object there."""
        return at

    def holder(self, at: int) -> int:
        """The id of the client that holds the lock of the object there; 0: no client."""
        held: int = self.endpoint.load(self.word(at))
        return held

    def post_acquire(self, at: int) -> int:
        """Post the lock of the object there; the ticket of its result, 0 if it was unlocked."""
        return self.endpoint.post_cas(self.word(at), 0, self.client.ident)

    def post_release(self, at: int) -> None:
        """Post the unlocking of the object there, which this client has locked."""
        self.endpoint.post_write(self.word(at), self.zero, 1)
