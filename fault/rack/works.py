"""The kinds of work by their names."""

from __future__ import annotations

from typing import Final

from limpet.fault.rack.work import Work
from limpet.fault.rack.work_bank import PREFIX, BankWork
from limpet.fault.rack.work_channels import WORKS
from limpet.fault.rack.work_store import StoreWork
from limpet.shm.errors import ParameterError
from limpet.stores.registry import KINDS as STORES

STORE_KINDS: Final = ("race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco")
TRANSACTIONS: Final = (PREFIX + "rtx-sherman", PREFIX + "rtx-race")
KINDS: Final = (*STORE_KINDS, *WORKS, *TRANSACTIONS)
"""The works that the rack runs when it is not told otherwise."""


def work_of(kind: str, keys: int) -> Work:
    """The work of that name; `keys`: how many keys a store has. ParameterError if there is none."""
    if kind in WORKS:
        return WORKS[kind](kind)
    if kind in TRANSACTIONS:
        return BankWork(kind)
    if kind in STORES:
        return StoreWork(kind, keys)
    raise ParameterError(
        f"the rack has no kind {kind!r}: name {', '.join((*WORKS, *TRANSACTIONS))}, "
        "or a kind of store"
    )
