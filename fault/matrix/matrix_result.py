"""Results of the crash matrix: failures as lines of text, and how many steps were tried."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from limpet.fault.inject.interrupt import Interrupted
from limpet.fault.matrix import crash_evidence
from limpet.fault.matrix.operations import Broken
from limpet.shm.errors import LimpetError

FAILURES_MAX: Final = 20
Counted = TypeVar("Counted")


@dataclasses.dataclass(frozen=True)
class MatrixResult:
    """The result of one dimension of the matrix for one operation of one store.

    `steps` of the operation, and how many of them were `tried`: the fault took place there.
    `next_steps`, `next_tried`: likewise of those that met the victims and died in turn, all
    together. `runs` that were made, `seen` crash points, `failures`: one line for each run that
    broke a promise, with the step that repeats it.
    """

    store: str
    operation: str
    dimension: str
    steps: int
    tried: int
    next_steps: int
    next_tried: int
    runs: int
    seen: frozenset[str]
    failures: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """ "ok", or "FAILED": a promise was broken, or nothing was run."""
        return "FAILED" if self.failures or not self.runs else "ok"

    @property
    def complete(self) -> bool:
        """Whether every step was taken."""
        return self.tried == self.steps and self.next_tried == self.next_steps


class ResultCollector:
    """A MatrixResult in the making. `at`: the present run."""

    def __init__(self, store: str, operation: str, dimension: str) -> None:
        self.store = store
        self.operation = operation
        self.dimension = dimension
        self.steps = self.next_steps = self.next_tried = self.runs = 0
        self.tried: set[int] = set()
        self.seen: set[str] = set()
        self.failures: list[str] = []
        self.at = ""

    @property
    def full(self) -> bool:
        """Whether there are enough failures."""
        return len(self.failures) >= FAILURES_MAX

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """Note an exception of the body as a failure of the run `at`; signals are raised on."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            self.failures.append(f"{self.at}: {_told(error)}")

    def counted(self, at: str, count: Callable[[], Counted]) -> Counted | None:
        """The result of `count()`; None if it failed, which is noted."""
        self.at = at
        with self.judging():
            return count()
        return None

    def result(self) -> MatrixResult:
        """The result. A fault that never took place is a failure, too."""
        steps = max(self.steps, *self.tried, 0)
        if steps and not self.tried and not self.failures:
            self.failures.append(f"the fault took place at none of {steps} steps")
        seen = self.seen - {crash_evidence.UNLINKED}
        if crash_evidence.UNLINKED in self.seen and self.operation == "delete":
            seen.add("deleted")
        return MatrixResult(
            self.store, self.operation, self.dimension, steps, len(self.tried),
            self.next_steps, self.next_tried, self.runs, frozenset(seen), tuple(self.failures),
        )  # fmt: skip


def _told(error: Exception) -> str:
    """The error in a line; with its source line, unless it is a limpet error or a demand."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Broken | LimpetError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({place.filename}:{place.lineno}, in {place.name})"
