"""The check of a history of transactions for strict serializability, all keys together.

A history is strictly serializable if the transactions that happened have one order in which each
reads the values that the last one before it wrote, and in which a transaction that returned before
another was called comes first.

A history is refused with HistoryError unless two rules hold: the values that are written to a key
are all different, and different from its first value; and every transaction that writes a key has
read it. Then the order of a key's versions is known, as each names the one before it, and the
question has an exact answer, found in time that grows with the size of the history (Adya, Liskov
and O'Neil, "Generalized isolation level definitions", 2000; Kingsbury and Alvaro, "Elle", 2020).
A transaction in the column "from" must come before one in the column "to":

    edge          from                                  to
    write-read    writer of a version                   reader of that version
    write-write   writer of a version                   the writer that overwrote it
    read-write    reader of a version                   the writer that overwrote it
    real time     a transaction that returned           one that was called later

The history is strictly serializable exactly if these edges have no cycle, and no transaction
read a value that was never written, or only by an aborted transaction, or later by itself. Two
transactions that overwrite one version are a cycle of two. Edges of real time are not drawn from
each to each, which are n * n, but through a chain of the times of return: a transaction leads to
its return, which leads to the next return; and the last return before its call leads to it.

A transaction of unknown outcome happened if one that happened read its writes. Any other is left
out: no transaction saw it, and leaving out unseen transactions removes edges and adds none. Aborted
transactions are left out, too; their reads may have been inconsistent.

Known limits: a key can be deleted only once, and only if it was there at first, since "absent" is
a value like others; transaction_model.py judges small histories in which keys come and go. A
return in the nanosecond of a call counts as concurrent with it.
"""

from __future__ import annotations

import bisect
import dataclasses
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from limpet.fault.check.history import HistoryError
from limpet.fault.check.linearizability import Verdict
from limpet.fault.check.transactions import (
    Item,
    Transaction,
    Values,
    name_of,
    read_transactions,
    validate,
    value_text,
)

EXAMPLES_MAX: Final = 5
"""Reads of unwritten values that the text lists."""
STARTS_MAX: Final = 20
"""Transactions of the first cycle from which a shorter one is looked for."""

Version = tuple[Item, bytes | None]


@dataclasses.dataclass(frozen=True)
class Edge:
    """An edge between two transactions; `kind` as in the module. Times have no version."""

    kind: str
    before: Transaction
    after: Transaction
    version: Version | None = None

    def text(self, before: str, after: str) -> str:
        """The edge in words, in which the transactions have these names."""
        if self.version is None:
            return (
                f"{before} returned at {self.before.return_ns}, "
                f"before {after} was called at {self.after.call_ns}"
            )
        item, value = self.version
        first, then = self.kind.split("-")
        did = {"write": "wrote", "read": "read"}[first]
        did_then = {"write": "overwrote", "read": "read"}[then]
        what = f"{value_text(value)} in {name_of(item)}"
        return f"{before} {did} {what}, which {after} {did_then}"


@dataclasses.dataclass(frozen=True)
class SerializabilityReport:
    """The verdict on a history.

    unknown: transactions of unknown outcome; happened: those of them that others saw. cycle: the
    edges that contradict each other, each from the end of the one before it. unfounded: reads of
    unwritten values, in words; no cycle is looked for where there are any.
    """

    transactions: int
    aborted: int
    unknown: int
    happened: int
    cycle: tuple[Edge, ...] = ()
    unfounded: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return Verdict.OK if self.ok else Verdict.ILLEGAL

    @property
    def ok(self) -> bool:
        return not self.cycle and not self.unfounded

    @property
    def exit_status(self) -> int:
        """0 when the history was shown to be strictly serializable, else 1."""
        return 0 if self.ok else 1

    @property
    def detail(self) -> str:
        """Why it is illegal, in words; empty when it is not."""
        if self.unfounded:
            return "\n".join(self.unfounded)
        if not self.cycle:
            return ""
        count = len(self.cycle)
        names = [f"T{number}" for number in range(1, count + 1)]
        lines = [f"no order explains these {count} transactions:"]
        lines += [f"  {name} = {edge.before}" for name, edge in zip(names, self.cycle, strict=True)]
        lines.append("each of them comes before the next, and the last before the first:")
        for number, edge in enumerate(self.cycle):
            lines.append(f"  {edge.text(names[number], names[(number + 1) % count])}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict.value,
            "transactions": self.transactions,
            "aborted_transactions": self.aborted,
            "unknown_transactions": self.unknown,
            "unknown_that_happened": self.happened,
            "detail": self.detail,
        }


def check_file(path: str | os.PathLike[str]) -> SerializabilityReport:
    """`check` of the history in the file `path`; HistoryError if it cannot be read."""
    return check(read_transactions(path))


def check(
    history: Iterable[Transaction], *, initial: Values | None = None
) -> SerializabilityReport:
    """Judge a history; `initial`: the values of the keys before it (default: all absent).

    HistoryError if it breaks one of the rules for histories.
    """
    transactions = list(history)
    initial = initial or {}
    writers = _find_writers(transactions, initial)
    happened = _find_happened(transactions, writers)
    count = {
        outcome: sum(one.outcome == outcome for one in transactions)
        for outcome in ("committed", "aborted", "unknown")
    }
    unfounded = _find_unfounded(transactions, happened, writers, initial)
    cycle: tuple[Edge, ...] = ()
    if not unfounded:
        cycle = _Order([transactions[index] for index in happened]).cycle()
    return SerializabilityReport(
        transactions=len(transactions),
        aborted=count["aborted"],
        unknown=count["unknown"],
        happened=len(happened) - count["committed"],
        cycle=cycle,
        unfounded=tuple(unfounded),
    )


def _find_writers(transactions: Sequence[Transaction], initial: Values) -> dict[Version, int]:
    """The transaction that wrote each version, committed or not."""
    found: dict[Version, int] = {}
    for index, one in enumerate(transactions):
        validate(one)
        for version in one.writes.items():
            item, value = version
            if item not in one.reads:
                raise HistoryError(
                    f"{one}: it wrote {name_of(item)} without having read it, so it is unknown "
                    "which version it replaced; have every transaction read what it writes"
                )
            if version in found or initial.get(item) == value:
                other = transactions[found[version]] if version in found else "the first value"
                raise HistoryError(
                    f"{one}: it wrote {value_text(value)} to {name_of(item)}, and so did {other}; "
                    "have every write of a key be of a value of its own"
                )
            found[version] = index
    return found


def _find_happened(transactions: Sequence[Transaction], writers: dict[Version, int]) -> list[int]:
    """Committed transactions, and those of unknown outcome whose writes one that happened read."""
    left = [index for index, one in enumerate(transactions) if one.outcome == "committed"]
    found = set(left)
    while left:
        for version in transactions[left.pop()].reads.items():
            writer = writers.get(version)
            if writer is None or writer in found or transactions[writer].outcome != "unknown":
                continue
            found.add(writer)
            left.append(writer)
    return sorted(found)


def _find_unfounded(
    transactions: Sequence[Transaction],
    happened: Sequence[int],
    writers: dict[Version, int],
    initial: Values,
) -> list[str]:
    """Reads of unwritten or aborted values; if there are many, some of them."""
    found: list[str] = []
    for index in happened:
        one = transactions[index]
        for version in one.reads.items():
            item, value = version
            writer = writers.get(version)
            if writer is None:
                if initial.get(item) == value:
                    continue
                source = "no transaction wrote"
            elif writer == index:
                source = "it wrote itself, and only then"
            elif transactions[writer].outcome == "aborted":
                source = f"only an aborted transaction wrote ({transactions[writer]})"
            else:
                continue
            found.append(f"{one}: it read {value_text(value)} in {name_of(item)}, which {source}")
            if len(found) == EXAMPLES_MAX:
                return found
    return found


class _Order:
    """The edges between transactions that happened, each the number of its place in the list.

    The numbers after these are the times of return, in their order.
    """

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        self._transactions = transactions
        self._after: list[list[int]] = [[] for _ in transactions]
        self._add_versions()
        self._add_times()

    def _add_versions(self) -> None:
        """If many transactions overwrite one version, two are enough: they form a cycle."""
        writer: dict[Version, int] = {}
        overwriters: dict[Version, list[int]] = {}
        for number, one in enumerate(self._transactions):
            for item, value in one.writes.items():
                writer[item, value] = number
                overwriters.setdefault((item, one.reads[item]), []).append(number)
        for number, one in enumerate(self._transactions):
            for version in one.reads.items():
                if version in writer:
                    self._after[writer[version]].append(number)
                for other in overwriters.get(version, ())[:2]:
                    if other != number:
                        self._after[number].append(other)

    def _add_times(self) -> None:
        count = len(self._transactions)
        returns = sorted({one.return_ns for one in self._transactions if one.return_ns is not None})
        place = {return_ns: count + index for index, return_ns in enumerate(returns)}
        self._after += [[count + index + 1] for index in range(len(returns) - 1)]
        self._after += [[]] if returns else []
        for number, one in enumerate(self._transactions):
            if one.return_ns is not None:
                self._after[number].append(place[one.return_ns])
            earlier = bisect.bisect_left(returns, one.call_ns)
            if earlier:
                self._after[count + earlier - 1].append(number)

    def cycle(self) -> tuple[Edge, ...]:
        """A short cycle; nothing if there is none."""
        left = self._unordered()
        if not left:
            return ()
        best: list[int] = []
        for start in self._some_cycle(left)[:STARTS_MAX]:
            found = self._cycle_through(start, left, len(best))
            best = found or best
        pairs = zip(best, [*best[1:], best[0]], strict=True)
        return tuple(self._edge(before, after) for before, after in pairs)

    def _unordered(self) -> set[int]:
        """The transactions left when those without a predecessor are removed, repeatedly."""
        before = [0] * len(self._after)
        for followers in self._after:
            for number in followers:
                before[number] += 1
        free = [number for number, count in enumerate(before) if not count]
        left = set(range(len(before)))
        while free:
            number = free.pop()
            left.discard(number)
            for other in self._after[number]:
                before[other] -= 1
                if not before[other]:
                    free.append(other)
        return left

    def _some_cycle(self, left: set[int]) -> list[int]:
        """The transactions of some cycle. Every transaction in `left` has a predecessor there."""
        before = {other: number for number in left for other in self._after[number]}
        path: dict[int, None] = {}
        number = next(iter(left))
        while number not in path:
            path[number] = None
            number = before[number]
        walked = list(path)
        round_trip = walked[walked.index(number) :]
        return [number for number in round_trip if number < len(self._transactions)]

    def _cycle_through(self, start: int, left: set[int], longest: int) -> list[int]:
        """The transactions of a shortest cycle through `start`, in order.

        Nothing if there is none with fewer than `longest` (0: any number) of them.
        """
        came_from: dict[int, int] = {}
        steps = {start: 0}
        ahead = deque([start])
        while ahead:
            number = ahead.popleft()
            for other in self._after[number]:
                if other == start:
                    return self._path(start, number, came_from)
                is_time = other >= len(self._transactions)
                further = steps[number] + (not is_time)
                if other not in left or further >= steps.get(other, further + 1):
                    continue
                if longest and further + 1 >= longest:
                    continue
                steps[other] = further
                came_from[other] = number
                if is_time:
                    ahead.appendleft(other)
                else:
                    ahead.append(other)
        return []

    def _path(self, start: int, end: int, came_from: dict[int, int]) -> list[int]:
        path = [end]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return [number for number in reversed(path) if number < len(self._transactions)]

    def _edge(self, before: int, after: int) -> Edge:
        """The edge by which one comes before the other."""
        first, then = self._transactions[before], self._transactions[after]
        for version in then.reads.items():
            item, value = version
            if item in first.writes and first.writes[item] == value:
                kind = "write-write" if item in then.writes else "write-read"
                return Edge(kind, first, then, version)
        for version in first.reads.items():
            item, value = version
            if item in then.writes and then.reads[item] == value:
                return Edge("read-write", first, then, version)
        return Edge("real time", first, then)
