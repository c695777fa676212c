"""The drill of looks: one client looks at all that there is, while others make, rename and drop.

For every subject (kinds of stores, the cache, and channels) a client leads a *life*: it makes the
subject, writes to it, renames it, drops it, makes a store of another kind under the same name, and
drops that. Beside it, each of LOOKS:

    stopped  the client stops at step k of its life; the look begins, and stops at its step j; the
             client goes on to its end, unless it waits for the look; the look ends; the client ends
    killed   the client dies at step k of its life; all looks are made beside what it left
    storm    clients lead such lives over and over; at random one is killed, or stops for a while

for k = 1, 2, 3 ... until there is no such step, and a step j of one of the looks, or every one of
all of them. The steps are the changes and the loads of
words of directories; of a channel, which has none of its own, all of them.

No look raises, and no life fails that had the name to itself. Afterwards a recovery leaves what was
there before: no store, no channel, no region, no byte leaked; and the name can be used again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.fault.drill import beside
from limpet.fault.drill.beside import LEASE_US, Beside, WaitingEndpoint, WaitingPool
from limpet.fault.drill.engine import STEPS_MAX, Result
from limpet.fault.inject.stopping import stop
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.crash_matrix import quiet
from limpet.fault.matrix.operations import demand
from limpet.fault.matrix.subjects import SUBJECTS, TURNING, opened, pool_sizes
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.endpoint.hooked import MUTATING
from limpet.shm.errors import (
    ChannelRemoved,
    StoreDropped,
    StoreError,
    StoreFull,
    StoreMismatch,
)
from limpet.stores.registry import CACHES

ROLES: Final = ("stopped", "killed", "storm")
LIVING: Final = (*SUBJECTS, *CACHES)
LOOKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "audit": lambda pool: pool.audit(),
    "stores": lambda pool: pool.stores(count=True),
    "growth": lambda pool: pool.growth(),
    "recover": lambda pool: pool.recover(),
    "channels": lambda pool: pool.channels.list(),
}
"""Every call that looks at all stores or channels."""
SPREAD: Final = 37
STORM_S: Final = 3.0
STORM_LEASE_US: Final = 100_000
CLIENTS: Final = 3
PAUSES: Final = 10
"""A client that has paused so often waits for the look."""
KEYS: Final = 6


class LookingEndpoint(WaitingEndpoint, verbs=(*MUTATING, "load")):
    """Counts as steps the changes of words in `spans`, or, if it `loads`, the loads of them."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[range] = []
        self.loads = False

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if (verb == "load") != self.loads or not any(addr in span for span in self.spans):
            return words
        return super().on_verb(verb, addr, words)


class LookingPool(WaitingPool):
    """A pool with such an endpoint."""

    endpoint_class = LookingEndpoint
    endpoint: LookingEndpoint


def make(pool: Any, kind: str) -> Any:
    """A store or cache of that kind, with a few keys."""
    if kind in CACHES:
        store = pool.cache("subject", codec="bytes").store
    else:
        store = opened(pool, kind).store  # type: ignore[attr-defined]
    for number in range(KEYS):
        store.put(b"key %d" % number, bytes(40 * number))
    return store


def live(pool: Any, subject: str) -> None:
    """One life of the subject."""
    if subject in TURNING:
        opened(pool, subject).write(0)
        for name in pool.channels.names():
            pool.channels.remove(name)
        return
    make(pool, subject)
    pool.rename("subject", "renamed")
    pool.drop("renamed")
    make(pool, "loco" if subject == "race" else "race")
    pool.drop("subject")


class Looks(Beside):
    """Runs the roles for one subject.

    `every`: each step of each look, beside each step of a life; else one step of one look. Of the
    steps of a life, one in `stride` is taken.
    """

    pool_class = LookingPool
    pool: LookingPool

    def __init__(self, subject: str, url: str, every: bool = False, stride: int = 1) -> None:
        super().__init__(subject, url)
        self.every = every
        self.stride = stride

    def settings(self, way: str) -> dict[str, Any]:
        sizes = pool_sizes("race" if self.subject in CACHES else self.subject)
        return {"lease": (STORM_LEASE_US if way == "storm" else LEASE_US) / 1e6, **sizes}

    def open(self) -> None:
        """Nothing: each life makes it."""

    def run(self, role: str) -> Result:
        with quiet():  # every kill is on purpose here
            return super().run(role)

    def strike(self, way: str) -> None:
        directories = [self.pool.catalogue, *self.pool.regions.directories]
        self.pool.endpoint.spans = (
            [range(1 << 63)]
            if self.subject in TURNING
            else [
                range(found.base, found.base + found.entries * found.entry_size)
                for found in directories
            ]
        )
        live(self.pool, self.subject)
        self.before = self._there()
        {"stopped": self._stopped, "killed": self._killed, "storm": self._storm}[way]()

    def _there(self) -> list[Any]:
        """The traces of lives that have ended: there must be none."""
        with within(beside.PATIENCE_S, "the look at what is left"):
            self.pool.recover()
            audit = self.pool.audit()
            demand(not audit["leaked"] and not audit["held"], f"leaked or held: {audit}")
            regions = self.pool.exclusively(lambda: self.pool.regions.references().tolist())
            # The table of channels grows, and keeps what the next one of a name clears.
            linked = 0 if self.subject in TURNING else audit["reachable"]
            return [self.pool.stores(), self.pool.channels.list(), regions, linked]

    def _account(self, what: str) -> None:
        self.pool.recover()
        for store in self.pool.stores():
            self.pool.drop(store["name"])
        for name in self.pool.channels.names():
            self.pool.channels.remove(name)
        try:
            live(self.pool, self.subject)
        except StoreMismatch as error:  # the name was planned for a store of another kind
            demand("region" not in str(error), f"{what}: {error}")
            self.pool.drop("subject")
            live(self.pool, self.subject)
        there = self._there()
        demand(there == self.before, f"{what}: {there} is left, where {self.before} was")

    # ---- stopped --------------------------------------------------------------------------------

    def _stopped(self) -> None:
        looks = {name: self._steps_of(look) for name, look in LOOKS.items()}
        k, goes_on = 1, True
        while goes_on:
            demand(k < STEPS_MAX, "a life has no end")
            names = list(looks) if self.every else [list(looks)[k % len(looks)]]
            for name in names:
                # Else a step that is far from that beside the step before.
                steps = range(looks[name]) if self.every else [k * SPREAD % looks[name]]
                for j in steps:
                    self.runs += 1
                    goes_on = self._pair(name, k, j + 1)
            k += self.stride

    def _steps_of(self, look: Callable[[Any], object]) -> int:
        endpoint = self.pool.endpoint
        endpoint.loads, endpoint.stop_at = True, STEPS_MAX
        look(self.pool)
        steps, endpoint.loads, endpoint.stop_at = STEPS_MAX - endpoint.stop_at, False, 0
        return max(1, steps)

    def _pair(self, name: str, k: int, j: int) -> bool:
        """A life that stops at step k, beside a look that stops at step j; whether there was such a
        step of a life."""

        def lives(endpoint: Any, _: Any) -> None:
            def halt() -> None:
                stop()
                endpoint.pauses, endpoint.pause_at = 0, PAUSES

            endpoint.interrupt = halt
            endpoint.stop_at = k
            live(self.pool, self.subject)

        def looks(endpoint: Any, _: Any) -> None:
            endpoint.loads = True
            endpoint.stop_at = j
            LOOKS[name](self.pool)

        with Workers(self._client(lives)) as living, Workers(self._client(looks)) as looking:
            life = living.start(0)
            was_there = self._halted(life, "a life")
            looker = looking.start(0)
            met = self._halted(looker, f"{name} beside a life that is stopped at step {k}")
            os.kill(life, signal.SIGCONT)
            self._halted(life, f"a life beside {name} that is stopped at step {j}")
            self._end(looking, looker, f"{name}, step {j}, beside a life, step {k},")
            self._end(living, life, f"a life, step {k}, beside {name}, step {j},")
        self.stopped += was_there + met
        self._account(f"a life, step {k}, beside {name}, step {j}")
        return was_there

    # ---- killed ---------------------------------------------------------------------------------

    def _killed(self) -> None:
        k, died = 1, True
        while died:
            self.runs += 1
            demand(k < STEPS_MAX, "a life has no end")
            died = self._kill(k)
            k += self.stride

    def _kill(self, k: int) -> bool:
        def lives(endpoint: Any, _: Any) -> None:
            endpoint.interrupt = lambda: os.kill(os.getpid(), signal.SIGKILL)
            endpoint.stop_at = k
            live(self.pool, self.subject)

        with Workers(self._client(lives)) as living:
            life = living.start(0)
            with within(beside.PATIENCE_S, "a life"):
                ended = living.reap(life)
        died = ended.status == -signal.SIGKILL
        demand(died or ended.status == 0, f"a life failed: {ended.traceback}")
        self.stopped += died
        with within(beside.PATIENCE_S, f"a look beside a life that ended at step {k}"):
            for look in LOOKS.values():
                look(self.pool)
        self._account(f"a life that was killed at step {k}")
        return died

    # ---- storm ----------------------------------------------------------------------------------

    def _storm(self) -> None:
        chance = random.Random()

        def lives(slot: int, incarnation: int) -> None:
            look_away(self.pool)
            while True:
                try:
                    live(self.pool, self.subject)
                except StoreMismatch as error:  # of the kind that is there under this name
                    demand("region" not in str(error), f"a store cannot be made: {error}")
                except (StoreDropped, StoreFull, ChannelRemoved, KeyError):
                    pass  # another client was faster, or keeps its memory while it stands still
                except StoreError as error:
                    demand("no store" in str(error) or "renamed" in str(error), str(error))

        with Workers(lives) as living:
            for slot in range(CLIENTS):
                living.start(slot)
            end = time.monotonic() + STORM_S
            sleeping: dict[int, float] = {}
            while time.monotonic() < end or not self.runs:
                self.runs += 1
                for name, look in LOOKS.items():
                    with within(beside.PATIENCE_S, f"{name} in a storm"):
                        look(self.pool)
                for pid in [pid for pid, due in sleeping.items() if due < time.monotonic()]:
                    os.kill(pid, signal.SIGCONT)
                    del sleeping[pid]
                victim = chance.choice(list(living.pids.values()))
                if chance.random() < 0.2:
                    os.kill(victim, signal.SIGKILL)
                elif victim not in sleeping:
                    os.kill(victim, signal.SIGSTOP)
                    self.stopped += 1
                    sleeping[victim] = time.monotonic() + 3e-6 * STORM_LEASE_US * chance.random()
                for ended in living.wait(0.002):
                    sleeping.pop(ended.pid, None)
                    demand(ended.status == -signal.SIGKILL, f"a life failed: {ended.traceback}")
                    living.start(ended.slot)
        self._account("a storm")
