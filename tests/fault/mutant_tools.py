"""What known-bad variants of a store are that differ from it in the store's source only."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import pytest
from race_mutants import from_source

from limpet.stores import pool as stores_pool

Change = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store's source."""

    name: str
    changes: tuple[Change, ...] = ()


@contextlib.contextmanager
def store_in_force(sources: Sequence[str], cls: str, mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's: `cls` of the last of these sources."""
    made = from_source(sources, cls, *mutant.changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores_pool, "store_class", lambda kind: made)
        yield


UNCHANGED = Mutant("unchanged")
"""The shipped source, run as the mutants are."""
