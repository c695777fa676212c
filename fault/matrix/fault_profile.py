"""Fault profiles: the small pools and parameters with which each kind of store is tested.

A kind without a row here is tested with the defaults. `Store.losses_survived` says how many failed
memory nodes a store survives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

OF_REPLACEMENT: Final = frozenset({
    "node-restoring", "node-created", "node-filled", "unlocked", "half-removed",
    "nodes-made", "ring-closed", "ring-open",
})  # fmt: skip
"""The named crash points of a client that replaces a node (tests/stores/test_replaced_nodes.py) or
adds some (tests/shm/test_added_nodes.py), or
of a process that makes or removes a pool (`limpet drill names`)."""
OF_REPLICAS: Final = OF_REPLACEMENT | {
    "set-claimed", "set-in-part", "stray", "parked", "reconciled",
    "tails-first", "span-shortened", "number-claimed",
}  # fmt: skip
"""These, and the crash points that only clients of kinds with replicated objects come by, or with
objects of more than eight blocks, which tests/shm/test_groups.py has."""


@dataclasses.dataclass(frozen=True)
class Checksum:
    """Values of at most `size_max` bytes are under a checksum: damage of them is found by a get.

    `text`: the data under it, and the reason why no more is.
    """

    size_max: int = -1
    text: str = "none"


@dataclasses.dataclass(frozen=True)
class FaultProfile:
    """`matrix_...` is for the crash matrix, `explorer_...` for the explorer; sizes in bytes.

    `..._capacity` is the store's. The matrix needs a small capacity, as making the store takes
    steps, too; the explorer the smallest, so that keys meet. `capacity_never`: of a store for which
    a pool of the matrix has no room, once its last node has no more than `matrix_spare` free
    blocks. `parameters`: other parameters of the store. `not_met`: named crash points of the memory
    layer that no client of this kind comes by.
    """

    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    matrix_nodes: int = 2
    matrix_node_size: int = 512 << 10
    matrix_capacity: int = 16
    capacity_never: int = 7000
    matrix_spare: int = 2
    explorer_nodes: int = 1
    explorer_node_size: int = 256 << 10
    explorer_capacity: int = 1
    explorer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Parameters for the explorer only."""
    remote: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The same, if clients are remote: the simulated pool is not of several hosts, as theirs is."""
    sources: tuple[str, ...] = ()
    """Files of `stores` (glob patterns) that name this kind's crash points; without any, those of
    its own package."""
    not_met: frozenset[str] = OF_REPLICAS
    waits_for_stopped: bool = False
    """As in its paper, clients wait for one that stands still with a lock. So if it is not killed
    for that (the matrix's "stopped, wait"), no client can work around it until it is woken."""

    nodes_needed: int = 0
    """The store serves nothing without this many of the first memory nodes, which the matrix does
    not lose."""

    checksum: Checksum = Checksum(
        text="none: a value is in an object that a link names, which has its key and sizes"
    )
    metadata_process: bool = False
    """Whether a process has an index of its own, which outlives a change of the pool's memory."""

    @property
    def damage_parameters(self) -> dict[str, Any]:
        return {"capacity": max(64, self.matrix_capacity), **self.parameters}

    @property
    def matrix_parameters(self) -> dict[str, Any]:
        return {"capacity": self.matrix_capacity, **self.parameters}

    @property
    def explorer_parameters(self) -> dict[str, Any]:
        return {"capacity": self.explorer_capacity, **self.parameters, **self.explorer}


OF_OTHERS: Final = OF_REPLACEMENT | {
    "helped", "evicting", "voided", "reconciling", "levelling", "parked", "reconciled",
    "tentative-link", "stray", "taken", "number-claimed",
}  # fmt: skip
"""Named crash points that take another client, a lost node, or objects larger than replicated ones
are in the matrix's pools: tests/fault/test_fusee_explorer.py, tests/kit/scenes/fusee.py,
tests/stores/test_replaced_nodes.py, tests/shm/test_groups.py and tests/shm/test_writer_numbers.py
have them."""
OF_GROWTH: Final = frozenset({
    "subtable-made", "freezing", "split", "growing",
    "entry-decided", "slot-freezing", "slot-frozen",
    "entry-locked", "split-decided", "half-written", "split-locked", "split-unlocked",
})  # fmt: skip
"""Named crash points of subtables that are made and split: tests/fault/test_growth.py and
tests/stores/test_dtx.py have them."""
_IN_TABLES: Final = Checksum(
    size_max=16,
    text="of an entry or a node with its values, of at most `value_size` bytes (here 16); longer "
    "ones are in objects, which have none",
)
_WHOLE: Final = Checksum(1 << 40, "of the value, in its buffer or beside it")
_REPLICATED: Final = FaultProfile(
    {"replicas": 2},
    matrix_nodes=3,
    capacity_never=1 << 20,
    matrix_spare=8,
    explorer_nodes=2,
    explorer={"groups": 2},  # so that keys meet
    not_met=OF_OTHERS | OF_GROWTH,
)
_MAJORITIES: Final = FaultProfile(
    {"replicas": 3, "writers": 8},
    matrix_node_size=2 << 20,
    capacity_never=1 << 20,
    matrix_nodes=3,
    explorer_nodes=3,
    explorer_node_size=1 << 20,
    explorer={"groups": 2},
    checksum=_WHOLE,
    matrix_spare=48,
    not_met=OF_OTHERS | OF_GROWTH,
)
OF_LOGS: Final = frozenset({
    "noted", "written", "published", "locked", "decided", "installing", "releasing", "over",
    "aborted", "taken-over", "copied",
})  # fmt: skip
"""Named crash points of transactions with a log, which single operations seldom need, and of a
client that meets a lock: tests/stores/test_sherman_nodes.py, tests/kit/scenes/rtx.py have them."""
FAULT_PROFILES: Final = {
    "race": FaultProfile(
        capacity_never=1 << 20,
        explorer={"groups": 2, "bucket_size": 1},  # so that subtables are split
        not_met=OF_REPLICAS | OF_GROWTH,
    ),
    "cache": FaultProfile(
        nodes_needed=1,  # it has the ledger, and the words of tags
        capacity_never=1 << 20,
        sources=("race/*.py",),
        explorer={"groups": 2, "bucket_size": 1, "limit": 64, "max_items": 9},  # full at first
        not_met=OF_REPLICAS | OF_GROWTH | {"taken"},
    ),
    "rtx-race": FaultProfile(
        capacity_never=1 << 20,
        sources=("rtx/*.py", "race/*.py"),
        explorer={"groups": 2, "bucket_size": 1, "drift_us": 0, "each_us": 1},
        not_met=OF_REPLICAS | OF_GROWTH | OF_LOGS | {"leaf-locked", "leaf-installed"},
    ),
    "dtx-race": FaultProfile(
        capacity_never=1 << 20,
        sources=("baselines/dtx/[!s]*.py", "race/*.py"),
        explorer={"groups": 2, "bucket_size": 1},
        not_met=OF_REPLICAS | OF_GROWTH | {"noted", "stopped"},
        waits_for_stopped=True,
    ),
    "fusee": _REPLICATED,
    "fusee-cr": _REPLICATED,
    "fusee-nc": _REPLICATED,
    "swarm": _MAJORITIES,
    "dm-abd": _MAJORITIES,
    "clover": FaultProfile(
        metadata_process=True,
        capacity_never=30_000,
        explorer_capacity=16,
        not_met=OF_REPLICAS | {"tentative-link"},
    ),
    "rcuckoo": FaultProfile(
        {"value_size": 16},  # so that some of the values are in extents
        capacity_never=5000,
        remote={"sums": True},
        not_met=OF_REPLICAS | {"tentative-link", "moving"},
        checksum=Checksum(
            text="none where memory is one host's and coherent, as it is here: the sequence of a "
            "row shows that no client was writing it; elsewhere a sum of a row with its values"
        ),
        waits_for_stopped=True,
    ),
    "loco": FaultProfile(
        {"value_size": 16, "locks": 4, "tracker": 16},  # some of the values are in objects
        capacity_never=5000,
        explorer_capacity=16,
        explorer={"locks": 2, "tracker": 4},
        checksum=_IN_TABLES,
        not_met=OF_REPLICAS | {"tentative-link"},
        waits_for_stopped=True,
    ),
    "rtx-sherman": FaultProfile(
        {"value_size": 16},  # so that some of the values are in extents
        capacity_never=60_000,
        sources=("sherman/leaf_writer.py", "rtx/[!hr]*.py", "rtx/re*.py"),
        checksum=Checksum(
            text="of a node with its values, of at most `value_size` bytes; only check() looks at "
            "it, as a linked node is never changed. Longer ones are in objects, which have none"
        ),
        explorer={"drift_us": 0, "each_us": 2},  # so that leases are over while their owners work
        not_met=OF_REPLICAS | OF_LOGS | {"tentative-link"},
    ),
    "dtx-sherman": FaultProfile(
        {"value_size": 16},
        capacity_never=60_000,
        sources=(
            "baselines/dtx/[!r]*.py",
            "baselines/dtx/recovery.py",
            "sherman/in_place_commit.py",
        ),
        checksum=_IN_TABLES,
        not_met=OF_REPLICAS | {"tentative-link"},
        waits_for_stopped=True,
    ),
    "sherman": FaultProfile(
        {"value_size": 16},
        capacity_never=60_000,
        sources=("sherman/in_place_commit.py",),
        checksum=_IN_TABLES,
        waits_for_stopped=True,
    ),
    "pdpm": FaultProfile(
        not_met=OF_REPLICAS | {"tentative-link"}, checksum=_WHOLE, waits_for_stopped=True
    ),
    "raw": FaultProfile({"room": 4096}, checksum=Checksum(text="none, and no lock")),
}
_DEFAULT: Final = FaultProfile()


def profile_of(kind: str) -> FaultProfile:
    """The fault profile of this kind."""
    return FAULT_PROFILES.get(kind, _DEFAULT)
