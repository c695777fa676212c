"""What a demo is told, what it says while it runs, and what comes out of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final, Protocol

from limpet.fault.check.verify import Verdict
from limpet.fault.inject.supervisor import Progress

WORKERS: Final = "workers ended only when killed, and all of them in the end"
READS: Final = "every read gave a whole value that some write or the load wrote, and no stale one"
KEYS: Final = "no key is missing, none is extra"
INVARIANTS: Final = "check(): the invariants of the store"
AUDIT: Final = "audit() after recover(): 0 bytes leaked"
CHECKS: Final = (WORKERS, READS, KEYS, INVARIANTS, AUDIT)


@dataclasses.dataclass(frozen=True)
class DemoParameters:
    """What a demo does. `kill_rate` is per second; `write_share` is the share of rewrites.

    Keys are drawn from Zipf(theta) over all files.
    """

    url: str
    data: Path
    seed: int
    store: str = "race"
    clients: int = 4
    seconds: float = 10.0
    kill_rate: float = 2.0
    write_share: float = 0.2
    theta: float = 0.99

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "data": str(self.data)}


class Observer(Protocol):
    """Is told what the demo is doing, to show it."""

    def loading(self, done: int, total: int) -> None:
        """`done` of `total` bytes of files are in the pool."""

    def running(self, progress: Progress) -> None:
        """A few times a second, and once when all workers have ended."""

    def verifying(self, what: str) -> None:
        """A step of the verification begins."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What came out. `checks` has what was wrong with each thing that was checked, in words."""

    parameters: DemoParameters
    build: str
    files: int
    size: int
    skipped: list[str]
    seconds: dict[str, float]
    last: Progress
    kills: int
    restarts: int
    verdict: Verdict
    recovered: dict[str, Any]
    audit: dict[str, int]
    checks: dict[str, list[str]]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not any(self.checks.values())
