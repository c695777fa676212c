"""Stopping all clients of a tree, for a recovery (DrTM+H: its recovery is for all of them).

Two things in the region of a tree, behind its root: a word that names the client that has stopped
it, or 0; and for each slot of the pool a word in which its client says, by its id, that it waits
to stop the tree. All are 0 most of the time.

Who begins an operation looks at the word when it is pinned, so it is either seen by who has set the
word, or it sees the word, and leaves again. Who has set it waits until every client that was pinned
then has left its operation. Left out are those that are dead, and those that wait for the word,
which are pinned, too: they are recovering somebody. One that stands still is fenced by the policy
of the pool.

The word is taken over from a client that is provably dead (membership.py), so who has it is alone.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.membership import slot_address
from limpet.shm.slots import INCARNATION_BITS, PIN, client_id


class Stop:
    """The word of one tree, for one client. `at`: its address."""

    def __init__(self, store: Any, tree: int) -> None:
        self.pool = store.pool
        self.endpoint = store.endpoint
        self.ident = store.client.ident
        self.at = store.roots[tree] + store.parameters.node_size
        self.what = f"the tree of {store.name!r} on memory node {tree}"

    def take(self) -> None:
        """Stop the tree, and wait until nobody is in it. Pinned, in the recovery of a client."""
        mine = self._waiting(self.ident >> INCARNATION_BITS)
        self.endpoint.store(mine, self.ident)
        attempt = 0
        while not self._try():
            attempt += 1
            self.endpoint.pause(attempt)
        # CRASH(stopped): who meets the word finds its owner dead, and takes it over.
        self.endpoint.store(mine, 0)
        self._await_all()

    def give_back(self) -> None:
        """Let all go on."""
        self.endpoint.cas(self.at, self.ident, 0)

    def _try(self) -> bool:
        holder = self.endpoint.cas(self.at, 0, self.ident)
        if holder in (0, self.ident):
            return True
        if not self.pool.membership.ended(holder, self.what):
            return False
        return bool(self.endpoint.cas(self.at, holder, self.ident) == holder)

    def _waiting(self, slot: int) -> int:
        return int(self.at) + 8 + 8 * slot

    def _await_all(self) -> None:
        for laggard in self.pool.grace.pinned():
            attempt = 0
            while not self._is_out(laggard):
                attempt += 1
                self.endpoint.pause(attempt)

    def _is_out(self, laggard: Any) -> bool:
        """Whether a client that was pinned has left the operation, or does nothing in it."""
        membership = self.pool.membership
        slot, word = laggard.slot, laggard.word
        if membership.ours(slot) or self.endpoint.load(slot_address(slot) + PIN) != laggard.pin:
            return True
        if self.endpoint.load(self._waiting(slot)) == client_id(slot, word):
            return True
        if membership.dead(slot, word):
            return True
        return bool(membership.stands_still(self.what, laggard)) and bool(
            membership.end(slot, word, self.what)
        )
