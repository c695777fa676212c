"""The promises of a cache (stores/cache/), looked up in its memory: bounds, ledger, flights.

bounds    the linked entries are within `max_items` and `max_bytes`, or, in a resize, at most a
          step above them, and within the ledger's counts, at each moment
excess    the counts that kills have left too high are right again after three laps
flights   no key is stuck in the computation of a dead client
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.cache.bounds import STEP_ITEMS, STEP_UNITS
from limpet.stores.cache.layout import (
    ITEMS_SHIFT,
    LAPS_LIVE,
    OTHERS,
    PREFIX,
    UNIT,
    UNITS_MASK,
    pilot_of,
)
from limpet.stores.core.object_layout import HEADER

STEPS_MAX: Final = 10_000
PATIENCE_MS: Final = 1000


class Size(NamedTuple):
    """Items and bytes."""

    items: int
    size: int


def linked(store: Any) -> Size:
    """Items and bytes of the entries that the table links to, as the ledger counts them."""
    items = units = 0
    for reference in store.checker.linked_all()[0].tolist():
        sizes = store.endpoint.load((reference & ADDRESS_MASK & -UNIT) + PREFIX)
        taken = PREFIX + HEADER + ((sizes & 0xFFFF) + 7 & ~7) + (sizes >> 16)
        items, units = items + 1, units + (taken + UNIT - 1) // UNIT
    return Size(items, units * UNIT)


def counted(store: Any) -> Size:
    """Items and bytes by the ledger. Outside of an operation: other clients stand still."""
    total = store.ledger.total(store.ledger.lap())
    return Size(total >> ITEMS_SHIFT, (total & UNITS_MASK) * UNIT)


def bounds_fault(store: Any) -> str:
    """The bound that is not kept while no client takes a step, as text; "" if all are kept."""
    there, ledger = linked(store), counted(store)
    limits = store.bounds.in_force()
    resizing = store.bounds.resizing()  # by steps, the last of which may not have evicted yet
    items = (limits >> ITEMS_SHIFT) + resizing * STEP_ITEMS
    size = ((limits & UNITS_MASK) + resizing * STEP_UNITS) * UNIT
    if there.items > items or there.size > size:
        bounds = f"{items} items and {size} bytes"
        return f"{there.items} entries of {there.size} bytes are linked; the bounds are {bounds}"
    if there.items > ledger.items or there.size > ledger.size:
        return f"{there} is linked, and the ledger counts {ledger}"
    return ""


def excess_fault(store: Any) -> str:
    """The excess that the ledger counts after three laps, as text; "" if that is nothing."""
    lap = store.ledger.lap()
    for _ in range(STEPS_MAX):
        store.within(store.hand.step, 0, False, True)
        if store.ledger.lap() - lap > LAPS_LIVE:
            break
    else:
        return f"laps do not end: {store.ledger.lap() - lap} in {STEPS_MAX} steps"
    there, ledger = linked(store), counted(store)
    return "" if there == ledger else f"after three laps {there} is linked, and counted {ledger}"


def stuck_fault(store: Any, key: bytes) -> str:
    """The reason why no client could compute the value of this key now, as text; "": one can."""
    how, _, _, flight = store.begin_flight(key, 0, PATIENCE_MS)
    if how == OTHERS:
        if store.pool.exclusively(lambda: store.pool.membership.lives(pilot_of(flight))):
            return f"client {pilot_of(flight):#x} computes {key!r}, and lives"
        how, _, _, flight = store.begin_flight(key, flight, PATIENCE_MS)
    if how == OTHERS:
        return f"{key!r} is stuck in a computation of the dead client {pilot_of(flight):#x}"
    store.abandon_flight(key, flight)
    return ""
