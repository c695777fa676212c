"""Stopping all clients of a table, for a recovery (DrTM+H: its recovery is for all of them).

A table is the tree, or the directory, that a store has on a memory node. Two things in its region,
behind all else: a word that names the client that has stopped it, or 0; and for each slot of the
pool a word in which its client says, by its id, that it is about to stop the table, or has. All are
0 most of the time.

Who begins an operation looks at the word when it is pinned, so it is either seen by who has set the
word, or it sees the word, and leaves again. Who has set it waits until every client that was pinned
then has left its operation. Left out are those that are dead, and those that stop this table or
another one of the store, who are pinned, too: they are recovering somebody, and do nothing in a
table that they have not stopped. One that stands still is fenced by the policy of the pool.

The word is taken over from a client that is provably dead (membership.py), so who has it is alone.

Known limit: two that at one moment recover two clients, which died in changes of two such stores of
one pool, wait for each other until one is fenced; or, with fence="wait", for good.
"""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.shm.errors import NodeFailed
from limpet.shm.membership import slot_address
from limpet.shm.slots import INCARNATION_BITS, PIN, client_id


def stop_size(clients: int) -> int:
    """Bytes of these words, in a pool with so many slots."""
    return 8 + 8 * clients


class Stop:
    """The word of one table, for one client. `at`: its address."""

    def __init__(self, store: Any, table: int) -> None:
        self.pool = store.pool
        self.endpoint = store.endpoint
        self.ident = store.client.ident
        self.words: list[int] = store.stop_words()
        """Of all tables of the store."""
        self.at = self.words[table]
        self.what = f"what {store.name!r} has on memory node {table}"

    def take(self) -> None:
        """Stop the table, and wait until nobody is in it. Pinned, in the recovery of a client."""
        self.endpoint.store(self._mine(), self.ident)
        attempt = 0
        while not self._try():
            attempt += 1
            self.endpoint.pause(attempt)
        # CRASH(stopped): who meets the word finds its owner dead, and takes it over.
        self._await_all()

    def give_back(self) -> None:
        """Let all go on."""
        self.endpoint.cas(self.at, self.ident, 0)
        self.endpoint.store(self._mine(), 0)

    def look_for(self) -> bool:
        """Look for who has stopped the table, and let it go on if that one is no client any more;
        False: nobody has."""
        holder = self.endpoint.load(self.at)
        if holder and self.pool.membership.gone(holder, self.what):
            self.endpoint.cas(self.at, holder, 0)
        return holder != 0

    def _try(self) -> bool:
        holder = self.endpoint.cas(self.at, 0, self.ident)
        if holder in (0, self.ident):
            return True
        if not self.pool.membership.ended(holder, self.what):
            return False
        return bool(self.endpoint.cas(self.at, holder, self.ident) == holder)

    def _mine(self) -> int:
        return self.at + 8 + 8 * (self.ident >> INCARNATION_BITS)

    def _recovers(self, slot: int, ident: int) -> bool:
        """Whether that client, of that slot, stops a table of the store, or is about to."""
        for word in self.words:
            with contextlib.suppress(NodeFailed):
                if self.endpoint.load(word + 8 + 8 * slot) == ident:
                    return True
        return False

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
        if self._recovers(slot, client_id(slot, word)) or membership.dead(slot, word):
            return True
        return bool(membership.stands_still(self.what, laggard)) and bool(
            membership.end(slot, word, self.what)
        )
