"""What known-bad variants of a store are that differ from it in the store's source only."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

import limpet
from limpet.shm.clients.membership import Membership
from limpet.shm.endpoint import slots
from limpet.shm.endpoint.layout import slot_address
from limpet.stores import pool as stores_pool

FOLDER: Final = Path(limpet.__file__).parent
Change = tuple[str, str]


def from_source(sources: Sequence[str], cls: str, *changes: tuple[str, str]) -> Any:
    """A class of the last of these sources, run with each text replaced, which must be there once.

    Each source imports the ones before it as they are made here; what is put in may also use the
    names that those have.
    """
    texts = [(FOLDER / source).read_text() for source in sources]
    for old, new in changes:
        found = [index for index, text in enumerate(texts) for _ in range(text.count(old))]
        assert len(found) == 1, f"{len(found)} times in the sources: {old}"
        texts[found[0]] = texts[found[0]].replace(old, new)
    module: types.ModuleType | None = None
    with mock.patch.dict(sys.modules):
        for source, text in zip(sources, texts, strict=True):
            name = "limpet." + source.removesuffix(".py").replace("/", ".")
            names = {} if module is None else vars(module)
            module = sys.modules[name] = types.ModuleType(name)
            module.__dict__.update({**names, **vars(module)})
            # What the compiled base class counts, it alone can write.
            text = re.sub(r"self\.(operations|retries) \+= .*", "pass", text)
            exec(compile(text, source, "exec"), module.__dict__)
    return getattr(module, cls)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`changes` of the store's source; `replace` is given the names of its modules, and replaces
    functions of their classes."""

    name: str
    changes: tuple[Change, ...] = ()
    replace: Callable[[dict[str, Any]], None] | None = None


@contextlib.contextmanager
def store_in_force(sources: Sequence[str], cls: str, mutant: Mutant) -> Iterator[None]:
    """Have pools made meanwhile be the mutant's: `cls` of the last of these sources."""
    made = from_source(sources, cls, *mutant.changes)
    if mutant.replace is not None:
        mutant.replace(made.__init__.__globals__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores_pool, "store_class", lambda kind: made)
        yield


def _overdue_for_ever(
    self: Membership, resource: object, hold: object, steadily: bool = False
) -> bool:
    since: dict[object, float] = self.__dict__.setdefault("_since", {})
    return self.now() - since.setdefault((resource, hold), self.now()) >= self.lease_s


def _progress_alone(self: Membership, slot: int) -> int:
    return int(self.endpoint.load(slot_address(slot) + slots.PROGRESS))


@contextlib.contextmanager
def sightings_for_ever() -> Iterator[None]:
    """Trap G9: a sighting is of a client and of a text, whatever operation the client is in; every
    one counts, since the first one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "overdue", _overdue_for_ever)
        patch.setattr(Membership, "_activity", _progress_alone)
        yield


UNCHANGED = Mutant("unchanged")
"""The shipped source, run as the mutants are."""
