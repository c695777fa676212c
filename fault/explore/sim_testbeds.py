"""The memory nodes and parameters with which each kind of store runs in virtual time: its paper's.

The fault profiles (fault/matrix/fault_profile.py) have small tables and few locks, so that clients
meet; here they have room. A workload may say otherwise for each parameter.

Sources
    swarm, dm-abd, raw    SWARM, section 7: four memory nodes, three replicas, index caches that
                          hold every key, a metadata buffer for each writer (7.9)
    fusee, -cr, -nc       FUSEE, 6.1 and 6.2: two memory nodes, two replicas
    clover, pdpm          FUSEE, 6.2: two memory nodes
    race, rtx, dtx        rTX, 6: one memory node; values in the leaves of trees
    rcuckoo               RCuckoo, 5.1: one memory node, values in the rows, which have sums, as in
                          pools of several hosts; a table filled to 90 %
    loco                  LOCO, 7.2: values in the array, filled to 80 %; the paper has 2 to 8 nodes
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.stores.swarm.layout import WRITERS_MAX


@dataclasses.dataclass(frozen=True)
class Demand:
    """The demands of a workload on a store: its clients, and in the end so many keys with values of
    so many bytes."""

    clients: int
    keys: int
    value_size: int


@dataclasses.dataclass(frozen=True)
class Testbed:
    """`nodes`: memory nodes. `parameters`: of the store, for a demand. `writers_max`: clients, if
    there are writes."""

    nodes: int = 1
    parameters: Callable[[Demand], Mapping[str, Any]] = lambda demand: {}
    writers_max: int = 512


def _writers(demand: Demand) -> dict[str, Any]:
    return {"replicas": 3, "writers": min(demand.clients, WRITERS_MAX)}


def _inline(demand: Demand) -> dict[str, Any]:
    return {"value_size": demand.value_size}


def _filled(share: float, **more: Any) -> Callable[[Demand], dict[str, Any]]:
    """Of a table of fixed size, whose keys fill this share of it."""
    return lambda demand: {**_inline(demand), "capacity": int(demand.keys / share), **more}


_TREE: Final = Testbed(parameters=_inline)
_FUSEE: Final = Testbed(2, lambda demand: {"replicas": 2})
_SWARM: Final = Testbed(4, _writers, WRITERS_MAX)
_OF_FUSEE: Final = Testbed(2, lambda demand: {"capacity": 2 * demand.keys})
TESTBEDS: Final = {
    "raw": Testbed(4, lambda demand: {"room": max(64, demand.value_size)}),
    "swarm": _SWARM, "dm-abd": _SWARM,
    "fusee": _FUSEE, "fusee-cr": _FUSEE, "fusee-nc": _FUSEE,
    "clover": _OF_FUSEE, "pdpm": _OF_FUSEE,
    "sherman": _TREE, "dtx-sherman": _TREE, "rtx-sherman": _TREE,
    "rcuckoo": Testbed(parameters=_filled(0.9, sums=True)),
    "loco": Testbed(4, _filled(0.8)),
}  # fmt: skip
_DEFAULT: Final = Testbed()


def testbed_of(kind: str) -> Testbed:
    """The testbed of this kind; one memory node and the store's own defaults if it has none."""
    return TESTBEDS.get(kind, _DEFAULT)
