"""The keys of a batch, each with a register of its own; and their READs, side by side.

READ and WRITE of different registers know nothing of each other (safe_guess.py). So a batch has a
`KeyRegister` for each of its keys (`BatchRows`), and shares nothing but phases, whose verbs are
posted. It is for keys whose places the cache has.

    READ of 32 keys        all replicas, the values in place with them                          1
    values out of place    each is a phase of its own, as of a single READ

A key is left to a single get if its READ would go on after that phase: if no majority has the
greatest tuple, or that is not VERIFIED, or a tombstone; if the cache does not have the key, or the
register is given up; if a node is lost in the phase. Nothing of a READ that ended so has changed
anything: it may begin again.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.errors import LimpetError
from limpet.stores.core.status import BATCH
from limpet.stores.swarm.finder import Finder
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import DONE, NOWHERE, VERIFIED, WHOLE
from limpet.stores.swarm.words import is_tombstone

CAPACITY_MOST: Final = 1024
"""Bytes in place of the registers of a batch: with larger ones, phases save little."""


class BatchRows:
    """The registers of the keys of a batch. Valid within an operation, until the next batch."""

    def __init__(self, pool: Any, entry: int, owner: str, finder: Finder, parameters: Any) -> None:
        self.pool = pool
        self.entry = entry
        self.owner = owner
        self.finder = finder
        self.parameters = parameters
        self.registers: list[KeyRegister] = []
        """Of each row. Made for the first batch, as they take memory."""
        self.at = array("q", bytes(8 * BATCH))
        """Of each row: the entry of the cache that has its key; NOWHERE: it is left."""

    def select(self, keys: list[Any], count: int) -> None:
        """Select the registers of these keys, and the replicas to be read."""
        finder, cache = self.finder, self.finder.cache
        while len(self.registers) < BATCH:
            self.registers.append(
                KeyRegister(
                    self.pool,
                    self.entry,
                    self.owner,
                    self.parameters,
                    finder.register.row.turns,
                    CAPACITY_MOST,
                )
            )
        for row in range(count):
            cache.prefetch(keys[row])
        for row in range(count):
            register = self.registers[row]
            place = register.place
            at = cache.locate(keys[row])
            if not finder.recall(register, keys[row], at) or place.capacity > CAPACITY_MOST:
                at = NOWHERE
            elif register.quorum.elect():
                register.quorum.prefetch(place.reference, place.area, place.length, place.first)
            else:
                at = NOWHERE
            self.at[row] = at


class BatchReads:
    """READs of the keys of a batch."""

    def __init__(self, rows: BatchRows) -> None:
        self.rows = rows
        self.finder = rows.finder
        self.endpoint = self.finder.endpoint

    def get(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places in `found` of those that are left. In
        an operation."""
        rows, count = self.rows, len(keys)
        rows.select(keys, count)
        there = self._read_all(count)
        left: list[int] = []
        for row in range(count):
            value = None
            at = rows.at[row]
            if there and at >= 0:
                register = rows.registers[row]
                value = self.value_of(register)
                if value is not None:
                    register.protocol.mend(register.quorum.top, value)
                    self.finder.note_read(register, DONE, at)
            if value is None:
                left.append(len(found))
            found.append(value)
        return left

    def _read_all(self, count: int) -> bool:
        """The phase; whether there is anything to look at."""
        rows = self.rows
        posted = False
        try:
            for row in range(count):
                if rows.at[row] >= 0:
                    register = rows.registers[row]
                    register.quorum.post(WHOLE)
                    posted = True
            if posted:
                self.endpoint.wait()
        except LimpetError:
            return False  # each key meets the error again, in its own turn
        return posted

    def value_of(self, register: KeyRegister) -> Any:
        """The value of a register whose replicas have arrived; None: its READ is not over."""
        quorum = register.quorum
        if quorum.arrived() != DONE:
            return None
        m = quorum.top
        if is_tombstone(m) or not m & VERIFIED or quorum.count_at_least(m) < quorum.majority:
            return None
        return quorum.value_of(m)
