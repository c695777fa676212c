"""Names in the simulator: stores are made, renamed and dropped, while others look at all of them.

The calls of such a program, besides those on the store that is there (sim_program.py):

    o   make the store of that name, or open it; put a value, and get it
    z   drop the store of that name
    y   rename it
    l   look at all stores: an audit, their keys, their growth; and recover the dead

Clients with an even number make the kind that is explored, the others another kind.

The survivors demand, besides what they demand of any store (explorer.py)
    - no look raises, and no store fails to be made but for want of memory, or as there is one of
      another kind
    - a get returns a value that was put to this very store
    - when all stores of these names are dropped in the end, no region and no object of them is left
"""

from __future__ import annotations

import random
from typing import Any, Final

from limpet.fault.explore.schedule import Chooser, Longest
from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster
from limpet.fault.explore.sim_program import KINDS, OF_NAMES, PRESENT, RECOVER, Call, Program
from limpet.fault.explore.sim_run import Run
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.catalogue.directory import CLIENT_MASK
from limpet.shm.errors import LimpetError, StoreDropped, StoreError, StoreFull, StoreMismatch

KEY: Final = b"key"
VALUE_SIZE: Final = 40
NODE_SIZE: Final = 1 << 20
OTHERS: Final = ("race", "loco")
_DRAWN: Final = "ooozzyll"


class NamesCluster(SimulatedCluster):
    """A cluster with memory for some stores more."""

    steps: dict[str, int]
    """Of each call of names, its steps without interference; empty until they are measured."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.steps = {}
        super().__init__(*given, **named)
        self.reset()
        self.there = self.audited()

    def _node_size(self, least: int, clients: int) -> int:
        return max(NODE_SIZE, super()._node_size(least, clients))

    def audited(self) -> tuple[dict[str, int], list[int]]:
        """The result of an audit, and the objects of regions."""
        pool = self.setup_client
        return pool.audit(), pool.exclusively(lambda: pool.regions.references().tolist())

    def steps_of(self, call: Call) -> int:
        """Steps of a call of names without interference, or a few more."""
        if not self.steps:
            for kind in sorted(OF_NAMES):
                watch = Longest({})
                NamesRun(self, ((Call("open", PRESENT[0]), Call(kind, PRESENT[0])),), watch).go()
                self.steps[kind] = watch.steps
        return self.steps[call.kind]


class NamesRun(Run):
    """One run of a program of calls of names."""

    cluster: NamesCluster

    def __init__(self, cluster: NamesCluster, program: Program, chooser: Chooser) -> None:
        super().__init__(cluster, program, chooser)
        self.values: dict[tuple[int, int], set[bytes]] = {}
        """By number and serial of a store's entry, the values that were put."""

    def _call(self, client: SimulatedClient, call: Call) -> None:
        if call.kind not in OF_NAMES:
            super()._call(client, call)
            return
        pool, name = client.pool, call.key.decode()
        try:
            if call.kind == "open":
                self._open(client, name)
            elif call.kind == "drop":
                pool.drop(name)
            elif call.kind == "rename":
                pool.rename(name, "b" if name == "a" else "a")
            else:
                self._look(pool)
        except (StoreDropped, StoreFull):
            pass
        except StoreMismatch as error:
            if "region" in str(error):
                raise
        except StoreError as error:
            if type(error) is not StoreError or call.kind in ("open", "look"):
                raise

    def _open(self, client: SimulatedClient, name: str) -> None:
        kind = self.cluster.kind if not client.number & 1 else OTHERS[self.cluster.kind == "race"]
        store = client.pool.store(kind, name=name, **profile_of(kind).explorer_parameters)
        value = b"%d.%d" % (client.number, client.op)
        there = store.entry_number, store.entry_word & CLIENT_MASK
        values = self.values.setdefault(there, set())
        values.add(value)
        store.put(KEY, value.ljust(VALUE_SIZE, b"."))
        found = store.get(KEY)
        if found is None or found.rstrip(b".") not in values:
            self.failure = self.failure or f"value: {name} has {found!r}, and was given {values}"

    def _look(self, pool: Any) -> None:
        pool.audit()
        pool.stores(count=True)
        pool.growth()
        pool.recover()

    def _inspect(self) -> str:
        failed = super()._inspect()
        if failed:
            return failed
        pool = self.cluster.setup_client
        try:
            for store in pool.stores():
                if store["name"] != "store":
                    pool.store(store["kind"], name=store["name"]).check()
                    pool.drop(store["name"])
            for kind in OTHERS:  # whatever was planned under these names is made, and dropped
                for name in PRESENT:
                    try:
                        pool.store(kind, name=name.decode())
                    except StoreMismatch as error:
                        if "region" in str(error):
                            raise
                    pool.drop(name.decode())
            audit, regions = self.cluster.audited()
        except LimpetError as error:
            return f"names: {type(error).__name__}: {error}"
        before, kept = self.cluster.there
        only = all(call.kind in OF_NAMES for calls in self.program for call in calls)
        same = ("leaked", "held", "reachable") if only else ("leaked", "held")
        if regions != kept or any(audit[key] != before[key] for key in same):
            return f"left: {audit} and regions {regions}, where there were {before} and {kept}"
        return ""


def draw_names(rng: random.Random, clients: int, ops: int, recover: bool) -> Program:
    """A random program of calls of names, on one or two of them."""
    names = rng.sample(PRESENT, 1 if rng.random() < 0.6 else 2)

    def call(letters: str) -> Call:
        kind = KINDS[rng.choice(letters)]
        return Call(kind, b"" if kind == "look" else rng.choice(names))

    program = [[call(_DRAWN) for _ in range(ops)] for _ in range(clients)]
    program[0][0] = call("o")
    if recover and rng.random() < 0.2:
        rng.choice(program)[rng.randrange(ops)] = Call(RECOVER)
    return tuple(tuple(calls) for calls in program)


NamesCluster.run_class = NamesRun
