"""Histories of transactions: records of their reads and writes, and the file format.

A history is a list of records, one for each attempt at a transaction. Its file has one JSON object
a line, with exactly these fields:

    field       meaning
    client      number of the client; no two incarnations share one
    outcome     "committed"; "aborted"; "unknown"
    reads       the values that it found: a list of [store, key, value]; not its own writes
    writes      the values that it wrote: a list of [store, key, value]; the last of each key
    call_ns     CLOCK_MONOTONIC before the attempt
    return_ns   CLOCK_MONOTONIC after it; null exactly when the outcome is "unknown"

A store is given by its name, a key and a value in hexadecimal, two digits a byte, and null for the
value of a key that is absent, or is deleted.

An attempt is unknown when its client was killed before it learned the result: it happened as a
whole, perhaps later, when another client repaired it, or not at all. No client must see the writes
of an aborted attempt. An attempt that ended in a conflict is aborted, and the next one is a record
of its own."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.fault.check.history import HistoryError, short, write_lines

Item = tuple[str, bytes]
"""The name of a store, and a key in it."""
Values = Mapping[Item, bytes | None]

OUTCOMES: Final = ("committed", "aborted", "unknown")
SHOWN_MAX: Final = 4
"""Keys that a message lists of a transaction."""


class Transaction(NamedTuple):
    """One attempt at a transaction; the module's docstring has the fields. Times in ns."""

    client: int
    outcome: str
    reads: Values
    writes: Values
    call_ns: int
    return_ns: int | None

    def __str__(self) -> str:
        end = "never returned" if self.return_ns is None else f"returned {self.return_ns}"
        return (
            f"client {self.client}: read {_listed(self.reads)}; wrote {_listed(self.writes)}"
            f" -> {self.outcome}, called {self.call_ns}, {end}"
        )


FIELDS: Final = frozenset(Transaction._fields)


def name_of(item: Item) -> str:
    """A key for messages, with its store."""
    store, key = item
    return f"{store}[{short(key)}]"


def value_text(value: bytes | None) -> str:
    """A value for messages."""
    return "absent" if value is None else short(value)


def _listed(values: Values) -> str:
    shown = [f"{name_of(item)} {value_text(values[item])}" for item in list(values)[:SHOWN_MAX]]
    if len(values) > SHOWN_MAX:
        shown.append(f"{len(values) - SHOWN_MAX} more")
    return ", ".join(shown) or "nothing"


def validate(transaction: Transaction) -> None:
    """Raise HistoryError unless the fields of `transaction` agree with each other."""
    outcome, call_ns, return_ns = transaction.outcome, transaction.call_ns, transaction.return_ns
    if outcome not in OUTCOMES:
        raise HistoryError(f"outcome is {outcome!r}, not one of {', '.join(OUTCOMES)}")
    if (return_ns is None) != (outcome == "unknown"):
        raise HistoryError(
            f"return_ns is {return_ns} and the outcome {outcome!r}: "
            "an unknown outcome, and no other, has return_ns null"
        )
    if return_ns is not None and return_ns < call_ns:
        raise HistoryError(f"it returned at {return_ns} ns, before its call at {call_ns} ns")


# ---- the file ----------------------------------------------------------------------------------


def write_transactions(path: str | os.PathLike[str], history: Iterable[Transaction]) -> int:
    """Write `history` to the file `path`, replacing it; returns the number of records."""
    return write_lines(path, map(dump_line, history))


def read_transactions(path: str | os.PathLike[str]) -> list[Transaction]:
    """The records of the file `path`. HistoryError names the first line that is wrong, and why."""
    found: list[Transaction] = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found.append(parse_line(line))
            except HistoryError as error:
                raise HistoryError(f"{os.fspath(path)}, line {number}: {error}") from None
    return found


def dump_line(transaction: Transaction) -> str:
    """The line of a history file; HistoryError if there can be no such transaction."""
    validate(transaction)
    client, outcome, reads, writes, call_ns, return_ns = transaction
    fields = {
        "client": client,
        "outcome": outcome,
        "reads": _dumped(reads),
        "writes": _dumped(writes),
        "call_ns": call_ns,
        "return_ns": return_ns,
    }
    return json.dumps(fields) + "\n"


def _dumped(values: Values) -> list[tuple[str, str, str | None]]:
    return [
        (store, key.hex(), None if value is None else value.hex())
        for (store, key), value in values.items()
    ]


def parse_line(line: bytes) -> Transaction:
    """The transaction of one line; HistoryError says what is wrong with it."""
    try:
        fields = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"not a JSON object: {error}") from None
    if not isinstance(fields, dict) or fields.keys() != FIELDS:
        raise HistoryError(f"not a JSON object of the fields {', '.join(Transaction._fields)}")
    for name, kinds in _KINDS.items():
        if type(fields[name]) not in kinds:
            raise HistoryError(f"{name} is {fields[name]!r}, not {kinds[0].__name__}")
    fields["reads"] = _parsed(fields["reads"], "reads")
    fields["writes"] = _parsed(fields["writes"], "writes")
    transaction = Transaction(**fields)
    validate(transaction)
    return transaction


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "client": (int,),
    "outcome": (str,),
    "reads": (list,),
    "writes": (list,),
    "call_ns": (int,),
    "return_ns": (int, type(None)),
}


def _parsed(rows: list[Any], name: str) -> dict[Item, bytes | None]:
    found: dict[Item, bytes | None] = {}
    for row in rows:
        try:
            store, key, value = row
            item = _item(store, key)
            given = None if value is None else _bytes(value)
        except (TypeError, ValueError):
            raise HistoryError(f"{name} has {row!r}, not [store, key, value]") from None
        if item in found:
            raise HistoryError(f"{name} has {name_of(item)} twice")
        found[item] = given
    return found


@functools.lru_cache(1 << 16)
def _item(store: str, key: str) -> Item:
    """One object for equal keys, as most are met many times."""
    return str(store), bytes.fromhex(key)


_bytes = functools.lru_cache(1 << 16)(bytes.fromhex)
