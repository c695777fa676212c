"""The explanation of a history of one key that is not linearizable.

The search (linearize.py) stops at the first return that no order explains. The events until then
are the shortest failing prefix; the operations that were open then need not have taken effect.

Most of a prefix does not matter. So a part of it is searched again, from a quiescent point shortly
before the end and the states that were possible there. Its operations are relaxed one by one for as
long as it still fails: an operation that never changes the key is dropped, and one that does may
take effect at any time after its call, or never. The operations that cannot be relaxed are the
evidence. They show that the whole history is illegal, as relaxing never makes a legal history
illegal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from limpet.fault.check.history import Record, short
from limpet.fault.check.linearize import BudgetExceeded, Search, Timed
from limpet.fault.check.models import UNREAD, KeyModel, KeyOp, Values

WINDOW: Final = 60
"""Operations that are searched again; more where no quiescent point is so near."""
TRIAL_BUDGET: Final = 20_000
"""Configurations that one relaxation may cost; beyond, the operations are kept as evidence."""
EVENTS_MAX: Final = 2_000_000
"""Events that all relaxations together may take; then the evidence is what is left."""
SHOWN_MAX: Final = 20
"""Operations of a kind that the text lists."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The reason why the records of `key` cannot be ordered.

    failing: the operation whose return nothing explains. prefix: how many operations had been
    called by then. concurrent: those of them that were open. possible: the values that the key
    could have had just before the return, None for absent; `unread`: or one that no get returns.
    evidence: the operations that rule it out together, in the order of their calls, `failing` among
    them. sources: other operations that wrote what evidence read. start, start_unread: as possible
    and unread, where the evidence begins; None at the beginning of the history if the key was
    absent.
    """

    key: bytes
    failing: Record
    prefix: int
    concurrent: tuple[Record, ...]
    possible: tuple[bytes | None, ...]
    unread: bool
    evidence: tuple[Record, ...]
    sources: tuple[Record, ...]
    start: tuple[bytes | None, ...] | None
    start_unread: bool

    def __str__(self) -> str:
        could = self._values(self.possible, self.unread)
        lines = [
            f"key {short(self.key)}: nothing explains {self.failing}",
            f"  the first {self.prefix} operations of this key, up to that return, are enough",
            f"  just before that return the key could be {could}",
        ]
        lines += _listed("open at that return", self.concurrent)
        if self.start is not None:
            could = self._values(self.start, self.start_unread)
            lines.append(f"  when the operations below began it could be {could}")
        lines += _listed("ruled out by these, whatever became of all others", self.evidence)
        lines += _listed("what they read was written by", self.sources)
        if self.failing.read is not None and not self._written():
            lines.append("  no client had called a write of the value that it read")
        return "\n".join(lines)

    def _written(self) -> bool:
        read = self.failing.read
        everyone = (*self.evidence, *self.sources)
        return read in (self.start or ()) or any(record.value == read for record in everyone)

    @staticmethod
    def _values(values: tuple[bytes | None, ...], unread: bool = False) -> str:
        words = ["absent" if value is None else short(value) for value in values[:SHOWN_MAX]]
        if len(values) > SHOWN_MAX:
            words.append(f"{len(values) - SHOWN_MAX} further values")
        if unread:
            words.append("a value that no get returns")
        return " or ".join(words)


def explain(
    key: bytes,
    records: Sequence[Record],
    initial: bytes | None,
    events: Sequence[int],
    failed: int,
    budget: int,
) -> Explanation:
    """Explain why `events` of `records` fail at position `failed`, as a search has found.

    `budget` as for that search, which is done again; BudgetExceeded if this takes longer.
    """
    failing = ~events[failed]
    calls = [event for event in events[:failed] if event >= 0]
    cut = _quiescent(records, events[:failed], len(calls) - WINDOW)
    recent = [records[index].value for index in calls[-2 * WINDOW :]]
    named = [record.read for record in records] + recent
    values = Values(value for value in named if value is not None)
    timed = [Timed(values.key_op(one), one.call_ns, one.return_ns) for one in records]
    search = Search(KeyModel(values.number(initial)), budget)
    search.run(timed, events[:cut])
    trial = _Trial(records, events[cut : failed + 1], values, search)
    begun = {state for state, _, _ in search.configs}
    search.run(timed, events[cut:failed])
    possible = search.reachable()
    kept = trial.minimise(failing)
    reads = {records[index].read for index in kept} - {None}
    named_start = cut > 0 or initial is not None
    return Explanation(
        key=key,
        failing=records[failing],
        prefix=len(calls),
        concurrent=_in_order(records, set(search.open) - {failing}),
        possible=_values(values, possible),
        unread=UNREAD in possible,
        evidence=_in_order(records, kept),
        sources=_in_order(
            records, {i for i in calls if i not in kept and records[i].value in reads}
        ),
        start=_values(values, begun) if named_start else None,
        start_unread=named_start and UNREAD in begun,
    )


class _Trial:
    """The last events of a failing prefix, from a quiescent point on, with some of its operations
    relaxed. `search` has come to that point."""

    def __init__(
        self,
        records: Sequence[Record],
        events: Sequence[int],
        values: Values,
        search: Search[int, KeyOp],
    ) -> None:
        self._records = records
        self._events = events
        self._values = values
        self._start = list(search.configs)
        self._lost = dict(search.open)
        self._events_left = EVENTS_MAX

    def minimise(self, failing: int) -> set[int]:
        """Operations that suffice to fail, `failing` among them; none of them can be relaxed,
        unless the budgets were spent."""
        returned = [~event for event in self._events if event < 0]
        kept = [index for index in returned if index != failing]
        size = max(1, len(kept) // 2)
        while True:
            left: list[int] = []
            for start in range(0, len(kept), size):
                without = left + kept[start + size :]
                if not self._fails({failing, *without}):
                    left += kept[start : start + size]
            kept = left
            if size == 1:
                return {failing, *kept}
            size //= 2

    def _fails(self, kept: set[int]) -> bool:
        """Whether the operations `kept` fail, with all others relaxed."""
        self._events_left -= len(self._events)
        if self._events_left < 0:
            return False
        records = self._records
        reads = (records[index].read for index in kept)
        values = Values(read for read in reads if read is not None)
        search = Search(KeyModel(), TRIAL_BUDGET)
        for index in self._lost:
            record = records[index]
            search.call(index, Timed(values.key_op(record), record.call_ns, None))
        search.configs = [
            (
                values.renumber(self._values, state),
                sum(search.open[index] for index, bit in self._lost.items() if taken & bit),
                0,
            )
            for state, taken, _ in self._start
        ]
        timed = {
            index: Timed(
                values.key_op(records[index]),
                records[index].call_ns,
                records[index].return_ns if index in kept else None,
            )
            for index in self._events
            if index >= 0
        }
        events = [event for event in self._events if event >= 0 or ~event in kept]
        try:
            return search.run(timed, events) is not None
        except BudgetExceeded:
            return False


def _quiescent(records: Sequence[Record], events: Sequence[int], calls_max: int) -> int:
    """The last position in `events` with nothing open and at most `calls_max` calls before it."""
    found = calls = running = 0
    for position, event in enumerate(events):
        if not running and calls <= calls_max:
            found = position
        if event < 0:
            running -= 1
        else:
            calls += 1
            running += records[event].return_ns is not None
    return found


def _in_order(records: Sequence[Record], indices: Iterable[int]) -> tuple[Record, ...]:
    return tuple(sorted((records[index] for index in indices), key=lambda one: one.call_ns))


def _values(values: Values, states: Iterable[int]) -> tuple[bytes | None, ...]:
    return tuple(values.value(state) for state in sorted(states) if state != UNREAD)


def _listed(title: str, records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    lines = [f"  {title}:", *(f"    {record}" for record in records[:SHOWN_MAX])]
    if len(records) > SHOWN_MAX:
        lines.append(f"    and {len(records) - SHOWN_MAX} more")
    return lines
