"""Strict serializability of small histories in which keys come and go: a search for an order.

serializability.py has an exact answer for histories of any size, but only where each version of a
key has a writer of its own: "absent" is a value that comes again, so it cannot follow keys that are
inserted and deleted. Here all keys together are one object, and a transaction is an operation on
it: its reads and its writes. linearize.py answers whether that object is linearizable, in time that
grows exponentially, at worst, with the number of overlapping operations.

A state is the set of pairs of key and value. An operation can take effect in a state that agrees
with its reads: a value, a key that is ABSENT, or a key that is PRESENT, with any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from limpet.fault.check.history import Record
from limpet.fault.check.linearize import BudgetExceeded, Search, Timed, events_of
from limpet.fault.check.models import Model

PRESENT: Final = "present"
ABSENT: Final = None
Found = bytes | str | None
"""A value, PRESENT or ABSENT."""
State = frozenset[tuple[bytes, bytes]]
BUDGET: Final = 1 << 20
"""Configurations that the search for an order looks at."""


class Step(NamedTuple):
    """A transaction, or an operation on one key: its reads, and its writes (None: deleted)."""

    reads: tuple[tuple[bytes, Found], ...]
    writes: tuple[tuple[bytes, bytes | None], ...]

    def __str__(self) -> str:
        found = ", ".join(f"{key.decode()} {_shown(value)}" for key, value in self.reads)
        left = ", ".join(f"{key.decode()} {_shown(value)}" for key, value in self.writes)
        return f"read {found or 'nothing'}; wrote {left or 'nothing'}"


def _shown(value: Found) -> str:
    return "absent" if value is None else value if isinstance(value, str) else value.decode()


def step_of(reads: Mapping[bytes, Found], writes: Mapping[bytes, bytes | None]) -> Step:
    return Step(tuple(sorted(reads.items())), tuple(sorted(writes.items())))


class KeysModel(Model[State, Step]):
    """All keys together."""

    def __init__(self, initial: Mapping[bytes, bytes]) -> None:
        self._initial = frozenset(initial.items())

    def init(self) -> State:
        return self._initial

    def step(self, state: State, op: Step) -> State | None:
        there = dict(state)
        for key, found in op.reads:
            value = there.get(key)
            if (value is None) if found == PRESENT else (value != found):
                return None
        if not op.writes:
            return state
        for key, left in op.writes:
            if left is None:
                there.pop(key, None)
            else:
                there[key] = left
        return frozenset(there.items())

    def pure(self, op: Step) -> bool:
        return not op.writes


_NEEDS: Final[Mapping[tuple[str, str], Found]] = {
    ("insert", "ok"): ABSENT, ("insert", "exists"): PRESENT, ("insert", "unknown"): ABSENT,
    ("update", "ok"): PRESENT, ("update", "missing"): ABSENT, ("update", "unknown"): PRESENT,
    ("delete", "ok"): PRESENT, ("delete", "missing"): ABSENT, ("delete", "unknown"): PRESENT,
}  # fmt: skip
"""The state that an operation found, by its result. An unknown one counts as if it took effect."""


def timed_of(record: Record) -> Timed[Step]:
    """An operation on one key, as an operation on all keys."""
    reads: dict[bytes, Found] = {}
    writes: dict[bytes, bytes | None] = {}
    if record.op == "get":
        if record.result != "unknown":
            reads[record.key] = record.read
    else:
        if record.op == "swap":
            if record.result != "changed":
                reads[record.key] = record.read
        elif record.op != "put":
            reads[record.key] = _NEEDS[record.op, record.result]
        if record.result in ("ok", "unknown"):
            writes[record.key] = record.value
    return Timed(step_of(reads, writes), record.call_ns, record.return_ns)


def wrong_order(history: Iterable[Timed[Step]], initial: Mapping[bytes, bytes]) -> str:
    """The reason why there is no order of these in which each finds the values that those before it
    left, and comes after those that had returned before its call; "" if there is one.

    Raises BudgetExceeded when that takes too long to tell.
    """
    steps = list(history)
    events = events_of(steps)
    at = Search(KeysModel(initial), BUDGET).run(steps, events)
    if at is None:
        return ""
    listed = "\n".join(
        f"    {timed.call_ns} to {'never' if timed.return_ns is None else timed.return_ns}: "
        f"{timed.op}"
        for timed in sorted(steps, key=lambda timed: timed.call_ns)
    )
    return f"nothing explains what returned at {steps[~events[at]].return_ns}:\n{listed}"


__all__ = [
    "ABSENT", "PRESENT", "BudgetExceeded", "KeysModel", "Step", "step_of", "timed_of", "wrong_order"
]  # fmt: skip
