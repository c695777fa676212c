"""Short ways to write histories, and the definition of linearizability, tried out in full."""

from __future__ import annotations

from collections.abc import Sequence

from limpet.fault.check.history import Record

KEY = b"k"


def put(value: bytes, call: int, end: int | None, op: str = "put", result: str = "ok") -> Record:
    """A put (or insert, update) of KEY; `end` None: its outcome is unknown."""
    return Record(1, op, KEY, value, "unknown" if end is None else result, None, call, end)


def insert(value: bytes, call: int, end: int | None, result: str = "ok") -> Record:
    return put(value, call, end, "insert", result)


def update(value: bytes, call: int, end: int | None, result: str = "ok") -> Record:
    return put(value, call, end, "update", result)


def get(value: bytes | None, call: int, end: int) -> Record:
    """A get of KEY that gave `value`, or None."""
    return Record(2, "get", KEY, None, "missing" if value is None else "ok", value, call, end)


def delete(call: int, end: int | None, result: str = "ok") -> Record:
    return Record(3, "delete", KEY, None, "unknown" if end is None else result, None, call, end)


def outcomes(value: bytes | None, record: Record) -> list[tuple[bytes | None]]:
    """The possible values of the key after `record` with its result, as tuples; [] if none."""
    present = value is not None
    op, result = record.op, record.result
    if op == "get":
        fits = result == "unknown" or record.read == value
        return [(value,)] if fits else []
    needed = {"insert": not present, "put": True}.get(op, present)
    if result in ("exists", "missing"):
        return [] if needed else [(value,)]
    if needed:
        return [(record.value,)]
    return [(value,)] if result == "unknown" else []


def possible(history: Sequence[Record], value: bytes | None = None) -> bool:
    """Whether the history of one key is linearizable: every order of it is tried."""
    returned = [record.return_ns for record in history if record.return_ns is not None]
    if not returned:
        return True
    soonest = min(returned)
    return any(
        possible([*history[:index], *history[index + 1 :]], after)
        for index, record in enumerate(history)
        if record.call_ns <= soonest
        for (after,) in outcomes(value, record)
    )
