"""The kinds of stores. Limpet's own are in tables here, and so go through every test.

`limpet.fault.matrix.fault_profile` describes the kinds for the proofs.

A kind from outside needs no line here: a program calls `register`, or an installed package names it
as an entry point of the group `limpet.stores`. The catalogue of a pool has the name of the kind
only, so each process that uses, audits or drops such a store has to know the kind. Limpet's own
commands, such as `limpet inspect`, know those of entry points.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from limpet.shm.errors import ParameterError
from limpet.shm.late import late
from limpet.stores.core.base import Store


@dataclasses.dataclass(frozen=True)
class Kind:
    """The class of a store kind: its `module` and `name`.

    `fixed`: parameters that make it this kind, where several kinds are variants of one class; a
    program that makes a store of the kind may not give them.
    """

    module: str
    name: str
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


KINDS: Final = {
    "race": Kind("limpet.stores.race.store", "Race"),
    "rtx-race": Kind("limpet.stores.rtx.race", "RtxRace"),
    "dtx-race": Kind("limpet.stores.baselines.dtx.race", "DtxRace"),
    "fusee": Kind("limpet.stores.fusee.store", "Fusee"),
    "fusee-cr": Kind("limpet.stores.fusee.store", "Fusee", {"sequential": True}),
    "fusee-nc": Kind("limpet.stores.fusee.store", "Fusee", {"cache_size": 0}),
    "clover": Kind("limpet.stores.baselines.clover.store", "Clover"),
    "rcuckoo": Kind("limpet.stores.rcuckoo.store", "Rcuckoo"),
    "loco": Kind("limpet.stores.loco.store", "Kvstore"),
    "rtx-sherman": Kind("limpet.stores.sherman.transactional", "RtxSherman"),
    "dtx-sherman": Kind("limpet.stores.baselines.dtx.sherman", "DtxSherman"),
    "pdpm": Kind("limpet.stores.baselines.pdpm.store", "Pdpm"),
    "swarm": Kind("limpet.stores.swarm.store", "Swarm"),
    "dm-abd": Kind(
        "limpet.stores.swarm.store", "Swarm", {"guess": False, "in_place": False, "buffers": 1}
    ),
}

UNRECOVERED: Final = {
    "sherman": Kind("limpet.stores.sherman.plain", "Sherman"),
    "race-locks": Kind("limpet.stores.race.locked", "RaceLocks"),
}
"""Kinds that recover nothing, as in their papers: only proofs without deaths run on them."""

UNPROVED: Final = {"raw": Kind("limpet.stores.baselines.raw.store", "Raw")}
"""Kinds that show how fast memory is, and promise nothing when clients meet or die: they go through
none of the proofs."""


CACHES: Final = {"cache": Kind("limpet.stores.cache.store", "CacheStore")}
"""Kinds that forget entries: `pool.cache` makes them. They have proofs of their own."""


CHANNELS: Final = ".channels"
"""Name of the pool's store of channels."""
INTERNAL: Final = {"channels": Kind("limpet.stores.channels.regions.catalogue", "ChannelCatalogue")}
"""Stores that limpet makes for itself. `Pool.stores` does not list them."""


ENTRY_POINTS: Final = "limpet.stores"
"""The group of entry points that name kinds of installed packages: `kind = "module:Class"`."""

PROVIDED: Final = (
    "Parameters", "make", "unmake", "get", "_write", "delete", "__len__", "keys", "references",
    "check",
)  # fmt: skip
"""The methods that the class of a kind provides (base.py)."""

_registered: Final[dict[str, Kind]] = {}


def register(kind: str, cls: type[Store], **fixed: Any) -> None:
    """Make `cls` the store kind of that name, in this process and those that it forks.

    `fixed`: parameters that make it this kind, as in `Kind`. Call it once the class is defined, at
    the top level of its module, so that each process that imports the module knows the kind. Raises
    ParameterError when the name is another kind's, or the class cannot be a store.
    """
    made = Kind(cls.__module__, cls.__qualname__, fixed)
    if _of_limpet(kind) or _registered.get(kind, made) != made:
        raise ParameterError(f"the store kind {kind!r} is there already; choose another name")
    lacking = [name for name in PROVIDED if getattr(cls, name, None) is getattr(Store, name, None)]
    if not issubclass(cls, Store) or lacking:
        raise ParameterError(
            f"{cls.__name__} cannot be the store kind {kind!r}: it derives from "
            f"limpet.stores.core.base.Store, and provides {', '.join(lacking or PROVIDED)}"
        )
    if getattr(import_module(made.module), made.name, None) is not cls:
        raise ParameterError(
            f"{made.name} cannot be the store kind {kind!r}: it is to be found by that name in "
            f"its module, {made.module}; define it at the top level there, and register it then"
        )
    _registered[kind] = made


def _of_limpet(kind: str) -> Kind | None:
    return {**KINDS, **UNRECOVERED, **UNPROVED, **CACHES, **INTERNAL}.get(kind)


def _installed(kind: str) -> Kind | None:
    """The kind of that name from an installed package, registered from now on."""
    from importlib import metadata  # not at the top: it would cost every program 20 ms

    for found in metadata.entry_points(group=ENTRY_POINTS, name=kind):
        register(kind, found.load())
    return _registered.get(kind)


def kind_named(kind: str) -> Kind:
    """The kind of that name; ParameterError lists the kinds."""
    found = _of_limpet(kind) or _registered.get(kind) or _installed(kind)
    if found is None:
        known = sorted({**KINDS, **UNRECOVERED, **UNPROVED, **_registered})
        raise ParameterError(
            f"there is no store kind {kind!r}; there is {', '.join(known)}; one from outside of "
            "limpet is there when the module that registers it was imported"
        )
    return found


def store_class(kind: str) -> Any:
    """The class of a store kind. Raises as `kind_named` does."""
    found = kind_named(kind)
    # A module of a user's may be one that is being imported, by this thread.
    imported = late if found.module.startswith("limpet.") else import_module
    return getattr(imported(found.module), found.name)


def parameters_of(kind: str) -> set[str]:
    """Names of the parameters that a store of that kind can be made with. Raises as `kind_named`
    does."""
    fixed = kind_named(kind).fixed
    return {
        name
        for base in store_class(kind).Parameters.__mro__
        if "for_pool" in vars(base)
        for name, found in inspect.signature(base.for_pool).parameters.items()
        if found.kind is inspect.Parameter.KEYWORD_ONLY and name not in fixed
    }
