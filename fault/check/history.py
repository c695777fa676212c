"""Histories of clients' operations on a store: records, their file format, and merging them.

A history is a list of records, one for each operation of one client on one key. Its file has one
JSON object a line, with exactly these fields:

    field       meaning
    client      number of the client; no two incarnations share one
    op          "insert", "update", "put", "get", "delete", or "swap": an update if the key has a
                certain value
    key         hexadecimal, two digits a byte
    value       the value that is written, hexadecimal; null for get and delete
    result      "ok"; "missing" (update, get, delete); "exists" (insert); "changed" (swap);
                "unknown"
    read        the value that a get with result "ok" returned, or that a swap expects, hexadecimal;
                null for all others
    call_ns     CLOCK_MONOTONIC before the call
    return_ns   CLOCK_MONOTONIC after the return; null exactly when the result is "unknown"

A record is unknown when its client was killed during the operation, or the operation raised an
error that leaves open whether it took effect (a failed memory node). Such an operation may take
effect at any time after its call, or never.

The order of the lines has no meaning; `merge` sorts by call. Times of different processes compare,
as CLOCK_MONOTONIC is one clock on one machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.shm.errors import LimpetError

RESULTS: Final = {
    "insert": ("ok", "exists", "unknown"),
    "update": ("ok", "missing", "unknown"),
    "put": ("ok", "unknown"),
    "get": ("ok", "missing", "unknown"),
    "delete": ("ok", "missing", "unknown"),
    "swap": ("ok", "changed", "unknown"),
}
"""The results that each operation can have."""
WRITES: Final = frozenset(("insert", "update", "put", "swap"))
"""The operations that have a value."""


class HistoryError(LimpetError, ValueError):
    """A record, or a line of a history file, is impossible."""


class Record(NamedTuple):
    """One operation; the module's docstring has the fields. Times in ns."""

    client: int
    op: str
    key: bytes
    value: bytes | None
    result: str
    read: bytes | None
    call_ns: int
    return_ns: int | None

    def __str__(self) -> str:
        argument = "" if self.value is None else f" {short(self.value)}"
        came = short(self.read) if self.read is not None else self.result
        end = "never returned" if self.return_ns is None else f"returned {self.return_ns}"
        return f"client {self.client}: {self.op}{argument} -> {came}, called {self.call_ns}, {end}"


FIELDS: Final = frozenset(Record._fields)


def short(data: bytes, limit: int = 40) -> str:
    """`data` for messages: as Python writes bytes, cut when long."""
    text = repr(data[:limit])
    return text if len(data) <= limit else f"{text}... ({len(data)} bytes)"


def validate(record: Record) -> None:
    """Raise HistoryError unless the fields of `record` agree with each other."""
    results = RESULTS.get(record.op)
    if results is None:
        raise HistoryError(f"op is {record.op!r}, not one of {', '.join(RESULTS)}")
    if record.result not in results:
        raise HistoryError(
            f"result of {record.op} is {record.result!r}, not one of {', '.join(results)}"
        )
    if (record.value is None) == (record.op in WRITES):
        needs = "needs a value" if record.op in WRITES else "has no value: it must be null"
        raise HistoryError(f"{record.op} {needs}")
    reads = record.op == "swap" or (record.op == "get" and record.result == "ok")
    if (record.read is not None) != reads:
        needs = "needs what was read" if reads else "reads nothing: read must be null"
        raise HistoryError(f"{record.op} with result {record.result} {needs}")
    if (record.return_ns is None) != (record.result == "unknown"):
        raise HistoryError(
            f"return_ns is {record.return_ns} and the result {record.result!r}: "
            "an unknown result, and no other, has return_ns null"
        )
    if record.return_ns is not None and record.return_ns < record.call_ns:
        raise HistoryError(
            f"it returned at {record.return_ns} ns, before its call at {record.call_ns} ns"
        )


def merge(*parts: Iterable[Record]) -> list[Record]:
    """One history of the records of many clients, in the order of their calls."""
    return sorted((record for part in parts for record in part), key=_by_call)


def _by_call(record: Record) -> tuple[int, int]:
    return record.call_ns, record.client


# ---- the file ----------------------------------------------------------------------------------


def write_history(path: str | os.PathLike[str], history: Iterable[Record]) -> int:
    """Write `history` to the file `path`, replacing it; returns the number of records."""
    return write_lines(path, map(dump_line, history))


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> int:
    """Write lines to the file `path`, replacing it; how many there were."""
    count = 0
    with open(path, "w", encoding="ascii") as file:
        for line in lines:
            file.write(line)
            count += 1
    return count


def read_history(path: str | os.PathLike[str]) -> list[Record]:
    """The records of the file `path`. HistoryError names the first line that is wrong, and why."""
    return list(iterate_history(path))


def iterate_history(path: str | os.PathLike[str]) -> Iterator[Record]:
    """As `read_history`, one record after the other."""
    same: dict[bytes, bytes] = {}
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = parse_line(line)
            except HistoryError as error:
                raise HistoryError(f"{os.fspath(path)}, line {number}: {error}") from None
            key = same.setdefault(record.key, record.key)
            yield record._replace(key=key) if key is not record.key else record


def dump_line(record: Record) -> str:
    """The line of a history file for `record`; HistoryError if there can be no such record."""
    validate(record)
    client, op, key, value, result, read, call_ns, return_ns = record
    return (
        f'{{"client": {client}, "op": "{op}", "key": "{key.hex()}", "value": {_hex(value)}, '
        f'"result": "{result}", "read": {_hex(read)}, "call_ns": {call_ns}, '
        f'"return_ns": {"null" if return_ns is None else return_ns}}}\n'
    )


def _hex(data: bytes | None) -> str:
    return "null" if data is None else f'"{data.hex()}"'


def parse_line(line: bytes) -> Record:
    """The record of one line, with or without its line end; HistoryError says what is wrong."""
    try:
        text = line.decode("ascii")
        fields = json.loads(text)
    except ValueError as error:
        raise HistoryError(f"not a JSON object: {error}") from None
    except RecursionError:
        raise HistoryError("not a JSON object of the format: nested too deeply") from None
    if not isinstance(fields, dict):
        raise HistoryError(f"not a JSON object but a {type(fields).__name__}")
    if fields.keys() != FIELDS:
        wrong = [f"{name!r} is missing" for name in Record._fields if name not in fields]
        wrong += [f"{name!r} is unknown" for name in fields if name not in FIELDS]
        raise HistoryError("; ".join(wrong))
    record = Record(
        _integer(fields, "client"),
        _text(fields, "op"),
        _bytes(fields, "key"),
        None if fields["value"] is None else _bytes(fields, "value"),
        _text(fields, "result"),
        None if fields["read"] is None else _bytes(fields, "read"),
        _integer(fields, "call_ns"),
        None if fields["return_ns"] is None else _integer(fields, "return_ns"),
    )
    validate(record)
    if text.count(":") != len(FIELDS):
        raise HistoryError("a field is there twice")
    return record


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int:
        raise HistoryError(f"{name} is {value!r}, not an integer")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if type(value) is not str:
        raise HistoryError(f"{name} is {value!r}, not a string")
    return value


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    value = fields[name]
    try:
        data = bytes.fromhex(value)
    except (TypeError, ValueError):
        raise HistoryError(f"{name} is {value!r}, not a string of hexadecimal digits") from None
    if len(value) != 2 * len(data):
        raise HistoryError(f"{name} is {value!r}: spaces between hexadecimal digits")
    return data
