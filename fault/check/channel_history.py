"""Verdicts on histories of channels; each is one object, so nothing is split by key.

The fault is text: "" if there is none, and "unknown: gave up" when the search took too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from limpet.fault.check.history import Record
from limpet.fault.check.linearize import NEVER, BudgetExceeded, Search, Timed, events_of
from limpet.fault.check.models import (
    LockModel,
    LockOp,
    Model,
    Op,
    QueueModel,
    QueueOp,
    State,
)
from limpet.fault.check.queue_monitor import Stay, queue_fault

BUDGET: Final = 200_000


def judge_lock(history: Sequence[Timed[LockOp]], budget: int = BUDGET) -> str:
    """The fault of a history of one lock. A death of a client is an operation of its own."""
    return judge(LockModel(), history, budget)


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
    cuts = [r.call_ns for r in history if r.op == "get" and r.result == "unknown"]
    if any(count > 1 for count in got.values()):
        return f"got twice: {got.most_common(1)[0]}"
    if len(lost) > len(cuts):
        return f"lost: {lost}, and {len(cuts)} gets were cut"
    seen = [
        record for record in history if record.result != "full" and not _unseen(record, got, lost)
    ]
    if fault := _monitor(seen, lost, min(cuts, default=NEVER)):
        return f"history: {fault}"
    if len(lost) < 2:
        return ""
    # Which of the cut gets took which value is not known.
    timed = [Timed(_queue_op(record), record.call_ns, record.return_ns) for record in seen]
    return judge(QueueModel(), timed, budget)


def _monitor(history: Sequence[Record], lost: set[bytes | None], cut: int) -> str:
    """The violation that is there even if each lost value was got by the first cut get, called at
    `cut`; the earlier the call of its get, the less a value is in the way. So with one lost value,
    or none, there is no other violation."""
    gets = {record.read: record for record in history if record.read is not None}
    stays = []
    for put in history:
        if put.op != "put":
            continue
        value, returned = put.value or b"", _end(put)
        if get := gets.pop(value, None):
            stays.append(Stay(value, put.call_ns, returned, get.call_ns, _end(get)))
        elif value in lost:
            stays.append(Stay(value, put.call_ns, returned, cut, NEVER))
    if gets:
        return f"{next(iter(gets))!r} is got, and was not put"
    empties = [(get.call_ns, _end(get)) for get in history if get.result == "missing"]
    return queue_fault(stays, empties)


def _end(record: Record) -> int:
    return NEVER if record.return_ns is None else record.return_ns


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


def judge(model: Model[State, Op], history: Sequence[Timed[Op]], budget: int = BUDGET) -> str:
    """The fault of a history of one object that this model specifies."""
    events = events_of(history)
    try:
        failed = Search(model, budget).run(history, events)
    except BudgetExceeded:
        return "unknown: gave up"
    return "" if failed is None else f"history: nothing explains {history[~events[failed]]}"
