"""Verdicts on histories of a lock and of a queue; each is one object, so nothing is split by key.

The fault is text: "" if there is none, and "unknown: gave up" when the search took too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from limpet.fault.check.history import Record
from limpet.fault.check.linearize import BudgetExceeded, Search, Timed, events_of
from limpet.fault.check.models import (
    LockModel,
    LockOp,
    Model,
    Op,
    QueueModel,
    QueueOp,
    State,
)

BUDGET: Final = 200_000


def judge_lock(history: Sequence[Timed[LockOp]], budget: int = BUDGET) -> str:
    """The fault of a history of one lock. A death of a client is an operation of its own."""
    return _judge(LockModel(), history, budget)


def judge_queue(history: Sequence[Record], budget: int = BUDGET) -> str:
    """The fault of a history of one queue, all of whose elements were got in the end.

    Records are puts of values that are all different, and gets; a get without a value found the
    queue empty ("missing"), or its outcome is unknown; a put that found it full is "full".
    """
    got: Counter[bytes | None] = Counter(
        record.read for record in history if record.read is not None
    )
    lost = {
        record.value
        for record in history
        if record.op == "put" and record.result == "ok" and record.value not in got
    }
    cut = sum(record.op == "get" and record.result == "unknown" for record in history)
    if any(count > 1 for count in got.values()):
        return f"got twice: {got.most_common(1)[0]}"
    if len(lost) > cut:
        return f"lost: {lost}, and {cut} gets were cut"
    timed = [
        Timed(_queue_op(record), record.call_ns, record.return_ns)
        for record in history
        if record.result != "full" and not _unseen(record, got, lost)
    ]
    return _judge(QueueModel(), timed, budget)


def _unseen(record: Record, got: Counter[bytes | None], lost: set[bytes | None]) -> bool:
    """Whether a cut operation can be left out: an order with it is one without it, too.

    A cut put whose value no get returned is either in no order, or taken by a cut get; and where no
    element is lost, a cut get can have taken nothing else.
    """
    if record.result != "unknown":
        return False
    return record.value not in got if record.op == "put" else not lost


def _queue_op(record: Record) -> QueueOp:
    if record.op == "put":
        return QueueOp("put", record.value or b"")
    if record.result == "missing":
        return QueueOp("empty")
    return QueueOp("lost") if record.read is None else QueueOp("get", record.read)


def _judge(model: Model[State, Op], history: Sequence[Timed[Op]], budget: int) -> str:
    events = events_of(history)
    try:
        failed = Search(model, budget).run(history, events)
    except BudgetExceeded:
        return "unknown: gave up"
    return "" if failed is None else f"history: nothing explains {history[~events[failed]]}"
