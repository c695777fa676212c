"""Hits, misses and so on, as the clients of a cache count them: `Counters`.

Each client slot has a line of counters among the cache's own words (layout.py). Only the process
that has the slot writes them, so a count is a load and a store. The line stays when its client is
gone, and the next client of the slot counts on in it, so the counts of a killed client are not
lost.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.cache.layout import COUNTER_SIZE, COUNTERS, COUNTS


class Counters:
    """The counters of a cache whose words are at `words`. Used within an operation."""

    def __init__(self, pool: Any, clients: int) -> None:
        self.endpoint = pool.endpoint
        self.client = pool.client
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
        self.line = self.words + COUNTERS + COUNTER_SIZE * (ident >> INCARNATION_BITS)
        self.owner = ident

    def all(self) -> dict[str, int]:
        """The counts of all clients, living and dead ones."""
        raw = self.endpoint.read(self.words + COUNTERS, COUNTER_SIZE * self.clients)
        words = memoryview(raw).cast("Q").tolist()
        return {name: sum(words[number::8]) for number, name in enumerate(COUNTS)}

    def own(self) -> dict[str, int]:
        """The counts of this process's client slot."""
        self.count(0, 0)
        raw = self.endpoint.read(self.line, COUNTER_SIZE)
        return dict(zip(COUNTS, memoryview(raw).cast("Q").tolist(), strict=False))
