"""The kinds of stores. A new one is registered here, and goes through every test that way.

What the proofs need to know of a kind is in `limpet.fault.kinds`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from limpet.shm.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class Kind:
    """Where the class of a store kind is: `module` and `name`.

    `fixed`: parameters that make it this kind, where several kinds are variants of one class; who
    makes a store of the kind may not give them.
    """

    module: str
    name: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


KINDS: Final = {
    "race": Kind("limpet.stores.race.growth", "Growing"),
    "rtx-race": Kind("limpet.stores.race.rtx_growth", "RtxGrowing"),
    "dtx-race": Kind("limpet.stores.race.logged_growth", "LoggedGrowing"),
    "fusee": Kind("limpet.stores.fusee.table", "Fusee"),
    "fusee-cr": Kind("limpet.stores.fusee.table", "Fusee", {"sequential": True}),
    "fusee-nc": Kind("limpet.stores.fusee.table", "Fusee", {"cache_size": 0}),
    "clover": Kind("limpet.stores.clover.table", "Clover"),
    "rcuckoo": Kind("limpet.stores.rcuckoo.table", "Rcuckoo"),
    "loco": Kind("limpet.stores.loco.kvstore.table", "Kvstore"),
    "rtx-sherman": Kind("limpet.stores.sherman.table", "Sherman"),
    "dtx-sherman": Kind("limpet.stores.inplace.logged", "Dtx"),
    "pdpm": Kind("limpet.stores.pdpm.table", "Pdpm"),
    "swarm": Kind("limpet.stores.swarm.table", "Swarm"),
    "dm-abd": Kind(
        "limpet.stores.swarm.table", "Swarm", {"guess": False, "in_place": False, "buffers": 1}
    ),
}

UNRECOVERED: Final = {
    "sherman": Kind("limpet.stores.inplace.table", "InPlace"),
    "race-locks": Kind("limpet.stores.race.locked_growth", "LockedGrowing"),
}
"""Kinds that by their paper recover nothing: they go through the proofs in which nobody dies."""

UNPROVED: Final = {"raw": Kind("limpet.stores.raw.table", "Raw")}
"""Kinds that show how fast memory is, and promise nothing when clients meet or die: they go through
none of the proofs."""


INTERNAL: Final = {"channels": Kind("limpet.stores.loco.memory", "ChannelMemory")}
"""Stores that limpet makes for itself."""


def kind_named(kind: str) -> Kind:
    """The kind of that name; ParameterError names those that there are."""
    kinds = {**KINDS, **UNRECOVERED, **UNPROVED}
    if kind not in kinds and kind not in INTERNAL:
        raise ParameterError(
            f"there is no store kind {kind!r}; there is {', '.join(sorted(kinds))}"
        )
    return kinds.get(kind) or INTERNAL[kind]


def store_class(kind: str) -> Any:
    """The class of a store kind. Raises as `kind_named` does."""
    found = kind_named(kind)
    return getattr(import_module(found.module), found.name)
