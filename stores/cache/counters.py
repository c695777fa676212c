"""What the clients of a cache count, hits, misses and so on: `Counters`.

Each client slot has a line of counters among the cache's own words (layout.py), which only the
process that has the slot writes; so a count is a load and a store. The line stays when its client
is gone, and the next client of the slot counts on in it: what a killed client counted is there.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.cache.layout import COUNTER_SIZE, COUNTERS, COUNTS


class Counters:
    """The counters of a cache whose words are at `words`. All of it within an operation."""

    def __init__(self, pool: Any, clients: int) -> None:
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.membership = pool.membership
        self.clients = clients
        self.words = 0
        self.line = 0
        """Address of our line; 0: to be looked for."""
        self.owner = 0

    def place(self, words: int) -> None:
        """The cache's words are at this address now."""
        self.words = words
        self.line = 0

    def count(self, what: int, number: int) -> None:
        """Count in the line of this client's slot."""
        if self.owner != self.client.ident or not self.line:
            self._find_line()
        self.endpoint.store(self.line + what, self.endpoint.load(self.line + what) + number)

    def _find_line(self) -> None:
        ident = self.client.ident
        slot = self.membership.place(ident)[0]
        self.line = self.words + COUNTERS + COUNTER_SIZE * slot
        self.owner = ident

    def all(self) -> dict[str, int]:
        """What all clients have counted, living and dead ones."""
        raw = self.endpoint.read(self.words + COUNTERS, COUNTER_SIZE * self.clients)
        words = memoryview(raw).cast("Q").tolist()
        return {name: sum(words[number::8]) for number, name in enumerate(COUNTS)}

    def own(self) -> dict[str, int]:
        """What the clients of this process's slot have counted."""
        self.count(0, 0)
        raw = self.endpoint.read(self.line, COUNTER_SIZE)
        return dict(zip(COUNTS, memoryview(raw).cast("Q").tolist(), strict=False))
