"""A look at a durable pool of a simulated run after a power cut, and whether it is whole.

All clients of the run are gone, and the host has another boot. A new client opens the pool, which
makes it whole (shm/mending.py). Then

    - the history of the run, with reads of all keys after the cut, is linearizable: an operation
      that had returned counts, and one that was under way happened as a whole or not at all
    - `audit()` finds nothing leaked, and nothing held by no client
    - after more writes, which use memory that is free again, `check()` holds
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from limpet.fault.explore.schedule import NEWEST, OLDEST
from limpet.fault.explore.sim_program import ABSENT, PRESENT
from limpet.shm.endpoint.layout import POWER
from limpet.shm.errors import LimpetError

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES_AFTER: Final = 6
"""Puts after a cut: more than there are free objects in a block."""


def chooser_of(seed: int) -> Callable[[int], int]:
    """Which of n versions of a line a power cut with this seed leaves."""
    if seed == OLDEST:
        return lambda count: 0
    if seed == NEWEST:
        return lambda count: count - 1
    rng = random.Random(seed)
    # A line is mostly as old, or as new, as can be.
    return lambda count: rng.choice((0, count - 1, rng.randrange(count)))


def look_after_cut(run: Any, seed: int) -> str:
    """Cut the power, open the pool, and inspect it: the fault as text; "" if there is none."""
    cluster = run.cluster
    cluster.power.cut(chooser_of(seed))
    pool = None
    try:
        other_boot(cluster)
        pool = cluster.pool_class.beside(cluster.setup_client)
        return _look(run, pool)
    except LimpetError as error:
        return f"check: {type(error).__name__}: {error}"
    finally:
        if pool is not None:
            pool.leave_run()


def other_boot(cluster: Any) -> None:
    """Have the pool look as after a reboot: this host's boot is not the one that it names."""
    endpoint = cluster.setup_client.endpoint
    endpoint.store(POWER, endpoint.load(POWER) ^ 1)


def _look(run: Any, pool: Any) -> str:
    store = pool.store(run.cluster.kind, name="store")
    reader = len(run.clients)
    keys = [*PRESENT, *ABSENT]
    for key in keys:
        run.perform(store, reader, "get", key, None)
    wrong = _audited(pool)
    for number in range(WRITES_AFTER):
        label = b"after %d" % number
        run.perform(store, reader, "put", keys[number % len(keys)], label)
    for key in keys:
        run.perform(store, reader, "get", key, None)
    store.check()
    history = run.wrong_history()
    return f"history: {history}" if history else wrong or run.failure


def _audited(pool: Any) -> str:
    audit = pool.audit()
    if audit["leaked"]:
        return f"leaked: {audit['leaked']} bytes: {audit}"
    if audit["held"]:
        return f"held: {audit['held']} bytes by no living client: {audit}"
    return ""
