"""Known-bad variants of a remote client's lasting pin and its copies (shm/clients/lasting.py)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import pytest

from limpet.fault.explore.explorer import Exploration
from limpet.shm.clients.lasting import LastingPin
from limpet.shm.endpoint.simulated import RemoteEndpoint


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Remote clients whose `cls` has this method. `says`: the kind of failure. The others: of an
    exploration that shows it."""

    name: str
    says: tuple[str, ...]
    cls: Any = LastingPin
    method: str = ""
    by: Any = None
    program: str = ""
    store: str = "race"
    scarce: bool = False
    crashes: int = 1
    stalls: int = 1
    node_failures: int = 0
    nodes: int = 0

    def parameters(self, schedules: int) -> Exploration:
        return Exploration(
            store=self.store, schedules=schedules, program=self.program, remote=True, seed=1,
            clients=self.program.count("|") + 1 if self.program else 3, scarce=self.scarce,
            crashes=self.crashes, stalls=self.stalls, node_failures=self.node_failures,
            nodes=self.nodes,
        )  # fmt: skip


def _end_untimed(self: Any) -> bool:
    """The operation returns what it has read, however long ago it began."""
    self.endpoint.copies = None
    if self.client.held:
        self.lasts = False
    return bool(self.lasts)


def _end_without_pin(self: Any) -> bool:
    """The pin is given up after each operation, and is believed to last."""
    self.endpoint.copies = None
    self.client.unpin()
    self.lasts = True
    return True


def _nothing(self: Any) -> None:
    pass


TRUSTED: Final = Mutant(
    "trusted-beyond-its-lease", ("lease",), method="end", by=_end_untimed,
    program="ga|ua ua ub|ua ub", scarce=True, crashes=0, stalls=6,
)  # fmt: skip
KEPT: Final = Mutant(
    "kept-when-idle", ("pin",), method="give_up", by=_nothing, program="ga|ua ua ub|ua ub",
    scarce=True,
)  # fmt: skip
BELIEVED: Final = Mutant(
    "believed-when-given-up", ("history",), method="end", by=_end_without_pin,
    program="ua ub|ga ga ga|ga ga ga",
)  # fmt: skip
COPIES_STAY: Final = Mutant(
    "copies-outlive-a-wait", ("node", "no end"), cls=RemoteEndpoint, method="_forget", by=_nothing,
    store="fusee", node_failures=1, nodes=2,
)  # fmt: skip
EXPLORED: Final = (TRUSTED, KEPT, BELIEVED, COPIES_STAY)
UNCHANGED: Final = Mutant("unchanged", ())


@contextlib.contextmanager
def in_force(mutant: Mutant) -> Iterator[None]:
    """Have remote clients be so meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        if mutant.method:
            patch.setattr(mutant.cls, mutant.method, mutant.by)
        yield
