"""The kinds of stores. A new one is registered here, and goes through every test that way."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from limpet.shm.errors import ParameterError

KINDS: Final = {"race": ("limpet.stores.race.table", "Race")}


def store_class(kind: str) -> Any:
    """The class of a store kind; ParameterError names the kinds that there are."""
    if kind not in KINDS:
        raise ParameterError(
            f"there is no store kind {kind!r}; there is {', '.join(sorted(KINDS))}"
        )
    module, name = KINDS[kind]
    return getattr(import_module(module), name)
