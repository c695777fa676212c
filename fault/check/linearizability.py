"""The check of a store's history for linearizability: key by key, with three verdicts.

ok: there is an order of the operations that explains every result. illegal: there is none; an
explanation says why (explanation.py). unknown: the search was given up when its budget was spent.

Keys are independent, as linearizability is local. An operation of unknown outcome may take effect
at any time after its call, or never. The search is linearize.py, the specification models.KeyModel.

Long histories are checked by several processes, one key at a time in each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, Protocol

from limpet.fault.check.explanation import Explanation, explain
from limpet.fault.check.history import Record, read_history
from limpet.fault.check.linearize import BudgetExceeded, Search, Timed, events_of
from limpet.fault.check.models import KeyModel, Values
from limpet.fault.inject.children import end_with_parent

BUDGET: Final = 2_000_000
BUDGET_PER_OPERATION: Final = 500
"""Configurations looked at for one key, and more for each of its operations; a few us each."""
ALONE_MAX: Final = 20_000
"""Up to this many operations, more processes cost more than they save."""
BATCH: Final = 2000
"""Operations handed to a process at a time, at least."""


class Records(Protocol):
    """Records of one key, which are iterated over once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Record]: ...


Part = tuple[bytes, Records, bytes | None]
"""A key, its records, and its value before them."""


class Verdict(enum.Enum):
    """Of a key, or of a whole history."""

    OK = "ok"
    ILLEGAL = "illegal"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class KeyReport:
    """The verdict on one key. `detail` is empty when the verdict is ok."""

    key: bytes
    verdict: Verdict
    operations: int
    unknown: int
    detail: str = ""
    explanation: Explanation | None = None


@dataclasses.dataclass(frozen=True)
class LinearizabilityReport:
    """The verdicts on a history, keys with the worst verdicts first."""

    keys: tuple[KeyReport, ...]

    @property
    def verdict(self) -> Verdict:
        """illegal if a key is; else unknown if a key is; else ok."""
        found = {key.verdict for key in self.keys}
        for verdict in (Verdict.ILLEGAL, Verdict.UNKNOWN):
            if verdict in found:
                return verdict
        return Verdict.OK

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK

    @property
    def exit_status(self) -> int:
        """0 when the history was shown to be linearizable, else 1."""
        return 0 if self.ok else 1

    @property
    def operations(self) -> int:
        return sum(key.operations for key in self.keys)

    def bad(self) -> list[KeyReport]:
        """The keys whose verdict is not ok."""
        return [key for key in self.keys if key.verdict is not Verdict.OK]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: totals, and every key that is not ok."""
        return {
            "verdict": self.verdict.value,
            "operations": self.operations,
            "unknown_operations": sum(key.unknown for key in self.keys),
            "keys": len(self.keys),
            "bad_keys": [
                {
                    "key": key.key.hex(),
                    "verdict": key.verdict.value,
                    "operations": key.operations,
                    "unknown_operations": key.unknown,
                    "detail": key.detail,
                }
                for key in self.bad()
            ],
        }


def check_file(path: str | os.PathLike[str], **options: Any) -> LinearizabilityReport:
    """`check` of the history in the file `path`; HistoryError if it cannot be read."""
    return check(read_history(path), **options)


def check(
    history: Iterable[Record],
    *,
    initial: Mapping[bytes, bytes] | None = None,
    budget: int | None = None,
    processes: int | None = None,
) -> LinearizabilityReport:
    """Judge a history; `initial`: the store's keys and values before it (default: none).

    `budget`: configurations looked at for one key; by default it grows with the operations on the
    key. `processes` None: one for each CPU that this process may use, when the
    history is long. They are forked: call it where no other thread of this process is busy.
    """
    of_key: dict[bytes, list[Record]] = {}
    for record in history:
        of_key.setdefault(record.key, []).append(record)
    initial = initial or {}
    parts = [(key, records, initial.get(key)) for key, records in of_key.items()]
    return check_parts(parts, budget=budget, processes=processes)


def check_parts(
    parts: Iterable[Part],
    *,
    budget: int | None = None,
    processes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LinearizabilityReport:
    """As `check`, of a history that is cut into its keys already.

    The process that judges a part iterates over its records, so they may be made then. `progress`
    is called with the number of judged operations; an exception of it ends the check.
    """
    ordered = sorted(parts, key=lambda part: len(part[1]), reverse=True)
    if processes is None:
        count = sum(len(part[1]) for part in ordered)
        processes = len(os.sched_getaffinity(0)) if count > ALONE_MAX else 1
    found: list[KeyReport] = []
    done = 0
    with contextlib.closing(_check_batches(ordered, budget, processes)) as batches:
        for reports in batches:
            found += reports
            done += sum(report.operations for report in reports)
            if progress is not None:
                progress(done)
    severity = [Verdict.ILLEGAL, Verdict.UNKNOWN, Verdict.OK]
    found.sort(key=lambda report: (severity.index(report.verdict), report.key))
    return LinearizabilityReport(tuple(found))


def check_key(
    key: bytes,
    records: Sequence[Record],
    initial: bytes | None = None,
    *,
    budget: int | None = None,
) -> KeyReport:
    """Judge the records of one key, which held `initial` (None: absent) before them."""
    if budget is None:
        budget = BUDGET + BUDGET_PER_OPERATION * len(records)
    values = Values(record.read for record in records if record.read is not None)
    timed = [Timed(values.key_op(record), record.call_ns, record.return_ns) for record in records]
    events = events_of(timed)
    search = Search(KeyModel(values.number(initial)), budget)
    lost = sum(record.return_ns is None for record in records)
    try:
        failed = search.run(timed, events)
    except BudgetExceeded:
        detail = (
            f"gave up: {budget:,} configurations were looked at, with {len(search.open)} "
            "operations open at once; a larger budget may decide it"
        )
        return KeyReport(key, Verdict.UNKNOWN, len(records), lost, detail)
    if failed is None:
        return KeyReport(key, Verdict.OK, len(records), lost)
    try:
        why = explain(key, records, initial, events, failed, budget)
    except BudgetExceeded:
        detail = f"nothing explains {records[~events[failed]]}; explaining more took too long"
        return KeyReport(key, Verdict.ILLEGAL, len(records), lost, detail)
    return KeyReport(key, Verdict.ILLEGAL, len(records), lost, str(why), why)


# ---- several processes -------------------------------------------------------------------------

_parts: list[Part] = []
_budget: int | None = None


def _check_batches(
    parts: list[Part], budget: int | None, processes: int
) -> Generator[list[KeyReport], None, None]:
    if processes == 1:
        for key, records, initial in parts:
            yield [check_key(key, list(records), initial, budget=budget)]
        return
    batches: list[tuple[int, int]] = []
    start = size = 0
    for index, part in enumerate(parts):
        size += len(part[1])
        if size >= BATCH or index == len(parts) - 1:
            batches.append((start, index + 1))
            start, size = index + 1, 0
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _inherit, (os.getpid(), parts, budget))
    try:
        yield from pool.map(_check_batch, batches)
    finally:
        pool.shutdown(cancel_futures=True)


def _inherit(parent: int, parts: list[Part], budget: int | None) -> None:
    """In a new process: note the arguments that it inherited by the fork."""
    global _budget
    end_with_parent(parent)
    _parts.extend(parts)
    _budget = budget


def _check_batch(batch: tuple[int, int]) -> list[KeyReport]:
    return [
        check_key(key, list(records), initial, budget=_budget)
        for key, records, initial in _parts[batch[0] : batch[1]]
    ]
