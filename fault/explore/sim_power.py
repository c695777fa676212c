"""A look at a durable pool of a simulated run after a power cut, and whether it is whole.

All clients of the run are gone, and the host has another boot. A new client opens the pool, which
makes it whole (shm/mending.py). In some runs it does not come to an end: it is killed at some step,
or the power is cut again, and another client begins anew. Then

    - the history of the run, with reads of all keys after the cut, is linearizable: an operation
      that had returned counts, and one that was under way happened as a whole or not at all
    - `audit()` finds nothing leaked, and nothing held by no client
    - after more writes, which use memory that is free again, `check()` holds
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.fault.explore.schedule import NEWEST, OLDEST
from limpet.fault.explore.sim_program import ABSENT, PRESENT
from limpet.shm.endpoint.hooked import MUTATING
from limpet.shm.endpoint.layout import POWER
from limpet.shm.endpoint.simulated import KIND_OF, PERSIST, Crashed
from limpet.shm.errors import LimpetError

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGING: Final = frozenset((*(KIND_OF[verb] for verb in MUTATING), PERSIST))
STEPS: Final = 2400
"""More steps than it takes to make a pool of a run whole."""
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


class Interruption(NamedTuple):
    """The end of a client that makes the pool whole: before which of its steps (from 1 on), and the
    seed of the power cut that ended it; None: it was killed."""

    step: int
    cut: int | None


def interruptions_of(seed: int) -> list[Interruption]:
    """How often, and where, the pool is not made whole after a power cut with this seed."""
    rng = random.Random(f"mending {seed}")
    return [
        Interruption(rng.choice((rng.randrange(1, 40), rng.randrange(1, STEPS))),
                     rng.choice((None, OLDEST, NEWEST, rng.randrange(2, 1 << 30))))
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]  # fmt: skip


def look_after_cut(run: Any, seed: int, interruptions: list[Interruption] | None = None) -> str:
    """Cut the power, open the pool, and inspect it: the fault as text; "" if there is none."""
    cluster = run.cluster
    cluster.power.cut(chooser_of(seed))
    other_boot(cluster)
    pool = None
    try:
        for one in interruptions_of(seed) if interruptions is None else interruptions:
            _begin_to_mend(cluster, one.step)
            if one.cut is not None:
                cluster.power.cut(chooser_of(one.cut))
                other_boot(cluster)
        pool = cluster.pool_class.beside(cluster.setup_client)
        return _look(run, pool)
    except LimpetError as error:
        return f"check: {type(error).__name__}: {error}"
    finally:
        if pool is not None:
            pool.let_go()


def other_boot(cluster: Any) -> None:
    """Make the pool look as after a reboot: it names another boot than this host's."""
    setup = cluster.setup_client
    setup.endpoint.store(POWER, setup.membership.here.boot ^ 1)


def _begin_to_mend(cluster: Any, step: int) -> None:
    """Let a client open the pool and end before this step of the opening, or after it."""
    left = step

    def turn(endpoint: Any, verb: str, addr: int, words: int) -> int:
        nonlocal left
        if verb in CHANGING:
            left -= 1
            if left <= 0:
                raise Crashed
            return 1
        return words

    class Mender(cluster.pool_class):
        def _wire(self, latency_ns: int) -> None:
            super()._wire(latency_ns)
            self.endpoint.memory = cluster.power
            self.endpoint.turn = turn

        def _unmap(self) -> None:
            self.endpoint.detach()
            self.membership.close()

    with contextlib.suppress(Crashed):
        Mender.beside(cluster.setup_client).let_go()


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
