"""The history of a drill: from the clients' notes to records, a verdict, and a file.

The history has the identity of a value (self_check.py), 8 bytes, instead of its bytes. The identity
is unique, and a client notes it for a read only if the value was whole.

Notes become records one key at a time, in the process that judges the key, so a history of millions
of operations never exists as Python objects all at once.

Left out before judging, each without changing the verdict:
- reads of unknown outcome, and writes that found no room: they changed nothing;
- writes of unknown outcome that were called after the last return of their key: no operation can
  have seen them. (After the loss of a node, all operations on its keys end like that.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from limpet.fault.check.history import Record, write_history
from limpet.fault.check.linearizability import LinearizabilityReport, Part, check_parts
from limpet.fault.check.recorder import Notes, Operation, Result
from limpet.fault.check.recording import from_notes

EXAMPLES_MAX: Final = 5


def torn(notes: Notes, keys: Sequence[bytes]) -> list[str]:
    """The reads that returned an unwritten value, in words; some of them if there are many."""
    found = notes[notes["result"] == Result.TORN]
    words = [
        f"client {note['client']} read a torn value of {keys[note['key']]!r}, "
        f"called {note['call_ns']}"
        for note in found[:EXAMPLES_MAX]
    ]
    if len(found) > EXAMPLES_MAX:
        words.append(f"and {len(found) - EXAMPLES_MAX} more torn reads")
    return words


def judge(
    notes: Notes, keys: Sequence[bytes], progress: Callable[[int, int], None] | None = None
) -> LinearizabilityReport:
    """Whether the history is linearizable; `progress` gets the operations judged, and all."""
    kept = _needed(notes)
    parts = _parts(kept, keys)

    def told(done: int) -> None:
        if progress is not None:
            progress(done, len(kept))

    return check_parts(parts, progress=told)


def write(path: str | os.PathLike[str], notes: Notes, keys: Sequence[bytes]) -> int:
    """Write the history, in the order of the calls, as JSON Lines; the number of records."""
    whole = notes[notes["result"] != Result.TORN]
    ordered = whole[np.argsort(whole["call_ns"], kind="stable")]
    return write_history(path, from_notes(ordered, keys.__getitem__, value_bytes))


def value_bytes(number: int) -> bytes:
    """The text that represents the value of this identity in a history."""
    return number.to_bytes(8, "big")


def _needed(notes: Notes) -> Notes:
    unknown = notes["result"] == Result.UNKNOWN
    useless = (notes["result"] == Result.TORN) | (notes["result"] == Result.FULL)
    useless |= unknown & (notes["op"] == Operation.GET)
    useless |= unknown & (notes["call_ns"] > _last_returns(notes, ~unknown)[notes["key"]])
    kept: Notes = notes[~useless]
    return kept


def _last_returns(notes: Notes, returned: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The time of the last return of each key, by its number; 0 if there is none."""
    found = np.zeros(int(notes["key"].max(initial=0)) + 1, np.int64)
    np.maximum.at(found, notes["key"][returned], notes["return_ns"][returned])
    return found


class _OfKey:
    """The records of one key, made from its notes each time they are asked for."""

    def __init__(self, notes: Notes, key: bytes) -> None:
        self._notes = notes
        self._key = key

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[Record]:
        return from_notes(self._notes, lambda _: self._key, value_bytes)


def _parts(notes: Notes, keys: Sequence[bytes]) -> Iterator[Part]:
    ordered = notes[np.argsort(notes["key"], kind="stable")]
    starts = np.flatnonzero(np.diff(ordered["key"], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        key = keys[ordered["key"][start]]
        yield key, _OfKey(ordered[start:end], key), None
