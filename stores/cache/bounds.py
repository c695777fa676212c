"""The bounds of a cache, and how they change while all clients use it: `Cache.resize`.

Words (layout.py)
    limits   the bounds in force. Each write reads them with the banks (ledger.py)
    target   the bounds that were asked for last

A resize
    1. set RESIZING in `limits`, so that each client that writes knows of it
    2. CAS `target`
    3. steps, until `limits` is the target: CAS `limits` to the target; or, of a bound that shrinks,
       to a little less than there is now, and evict so much. No step begins before the cache is
       within the bounds of the step before, so it is above them by one step at most
    4. the last CAS clears RESIZING

Any client may do the next step. A client that resizes does them all; a client that writes
meanwhile does one, so no write waits for a whole resize. A bound that grows has no steps.

A kill leaves behind: a resize under way, which the writes of others go on with; after 1, nothing to
do, and the next step clears RESIZING. A kill between 1 and 2 while another client does that step is
the same as one before 1. A client that has cleared RESIZING looks at the target again, so a step
that was decided before another resize does not end it.

Settings (`accept`). Processes of two deployments with different settings open one cache while the
new one replaces the old one. The newest settings win: those of which no living client had opened
the cache before. So a worker of the old deployment that is started again changes nothing, as others
of its kind are there, and no two deployments take turns. If the settings are put back, and all
clients with the newer ones have ended or not, they are new again once no client of the first period
is left. Each client slot has a line that says which bounds its client opened the cache with.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.errors import ParameterError, StoreMismatch
from limpet.shm.parameters import check_whole
from limpet.stores.cache.layout import (
    ITEMS_SHIFT,
    LIMITS,
    RESIZING,
    TARGET,
    UNIT,
    UNITS_MASK,
)
from limpet.stores.cache.parameters import ITEMS_MAX, LEAST, bounds_for

STEP_ITEMS: Final = 16
STEP_UNITS: Final = 4096
"""What a step of a resize evicts, at most, and what is left of an entry."""
REFUSE: Final = "refuse"
KEEP: Final = "keep"
NEWEST: Final = "newest"
"""What opening a cache with other bounds than it has does (`Pool.cache`)."""


class Bounds:
    """The bounds of the cache of a handle."""

    def __init__(self, store: Any) -> None:
        self.pool = store.pool
        self.endpoint = store.endpoint
        self.ledger = store.ledger
        self.counters = store.counters
        self.parameters = store.parameters
        self.name = store.name

    def in_force(self) -> int:
        """The bounds in force. Within an operation, as all methods, but `packed`."""
        return int(self.endpoint.load(self.ledger.words + LIMITS) & ~RESIZING or self.ledger.made)

    def resizing(self) -> bool:
        """Whether a resize is under way."""
        return bool(self.endpoint.load(self.ledger.words + LIMITS) >= RESIZING)

    def target(self) -> int:
        """The bounds that were asked for last."""
        return int(self.endpoint.load(self.ledger.words + TARGET) or self.ledger.made)

    def ask(self, limits: int, instead: int | None = None) -> bool:
        """Ask for these bounds, if those that were asked for last are `instead`, or for any; False:
        they are others. `step` does the rest."""
        at = self.ledger.words + TARGET
        while True:
            there = self.endpoint.load(at)
            if instead is not None and (there or self.ledger.made) != instead:
                return False
            # ORDER: before the target, so that no kill leaves a target that no client looks at.
            self.endpoint.fetch_or(self.ledger.words + LIMITS, RESIZING)
            if self.endpoint.cas(at, there, limits) == there:
                return True

    def step(self) -> bool:
        """One step of a resize, unless the cache is above the bounds; whether it is at its end."""
        endpoint, at = self.endpoint, self.ledger.words + LIMITS
        word, target = endpoint.load(at), self.target()
        limits = word & ~RESIZING or self.ledger.made
        if word == target or (not word and limits == target):
            return True
        total = self.ledger.total(self.ledger.lap())
        if not self.ledger.fits(total):
            return False
        if limits == target:
            endpoint.cas(at, word, target)
            if self.target() != target:
                endpoint.fetch_or(at, RESIZING)
            return False
        items = _lowered(limits >> ITEMS_SHIFT, target >> ITEMS_SHIFT,
                         total >> ITEMS_SHIFT, STEP_ITEMS)  # fmt: skip
        units = _lowered(limits & UNITS_MASK, target & UNITS_MASK,
                         total & UNITS_MASK, STEP_UNITS)  # fmt: skip
        # A kill from here on: the next client that writes evicts, and goes on.
        endpoint.cas(at, word, RESIZING | items << ITEMS_SHIFT | units)
        return False

    # ---- settings ---------------------------------------------------------------------------

    def packed(self, items: int | None, size: int | str | None, target: int) -> int:
        """The bounds with so many items and bytes; of one that is not given, that of `target`, or,
        if its items were as many as fit, as many as fit now. Raises ParameterError."""
        pool = self.pool
        most = self.parameters.limit
        before = (target & UNITS_MASK) * UNIT
        if size is None:
            size = before
        fitting, size = bounds_for(pool.parameters, pool.layout, size)
        if items is None:
            items = target >> ITEMS_SHIFT
            if items == min(max(1, before // LEAST), most):
                items = min(fitting, most)
        check_whole("max_items", items, 1, ITEMS_MAX)
        check_whole("max_bytes", size, 2 * LEAST, UNITS_MASK * UNIT)
        if items > most:
            raise ParameterError(
                f"{pool.url}: the table of the cache {self.name!r} has room for {most} items, not "
                f"{items}; make it anew for more, as by limpet dump, drop and load --max-items"
            )
        return items << ITEMS_SHIFT | size // UNIT

    def accept(self, items: int | None, size: int | None, way: str) -> bool:
        """Open the cache with settings of these bounds; True: others were asked for, which `step`
        brings about. Raises StoreMismatch, if the cache has others, and `way` is REFUSE."""
        asked = (items or 0) << ITEMS_SHIFT | (size or 0) // UNIT
        if not asked:
            return False
        while True:
            target = self.target()
            wanted = self.packed(items, size, target) if way == NEWEST else 0
            same = not self._difference(items, size, target)
            if same or way == KEEP:
                changed = False
            elif way == REFUSE:
                raise StoreMismatch(
                    f"{self.pool.url}: the cache {self.name!r} has "
                    f"{self._difference(items, size, target)}; its resize() changes that, or open "
                    f"it with resize={NEWEST!r}"
                )
            elif self._known(asked):
                changed = False
            elif self.ask(wanted, target):
                changed = True
            else:
                continue
            if way == NEWEST:
                # ORDER: after the change, so that no client takes it for made that is not.
                self.counters.ask(asked)
            return changed

    def _difference(self, items: int | None, size: int | None, target: int) -> str:
        """How the bounds that are given differ from the cache's, as text."""
        has = target >> ITEMS_SHIFT
        if items is not None and items != has:
            return f"max_items={has}, not {items}"
        units = target & UNITS_MASK
        if size is not None and size // UNIT != units:
            return f"max_bytes={units * UNIT}, not {size}"
        return ""

    def _known(self, asked: int) -> bool:
        """Whether a living client has opened the cache with these bounds before."""
        lives = self.pool.membership.lives
        return any(bounds == asked and lives(client) for client, bounds in self.counters.askers())


def _lowered(limit: int, target: int, there: int, step: int) -> int:
    """The next value of a bound on its way to the target, when there is so much."""
    return target if target >= limit else max(target, min(limit, there) - step)
