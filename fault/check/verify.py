"""The check that every read was possible: for keys that are loaded, rewritten, never deleted.

For each read in a history (`recorder.NOTE`), also those after the run:

- it found the key, and the value was whole;
- some write of that key, or the load, wrote the value, and was called before the read returned;
- the value was not stale: no completed write of the key was called after the value's own write
  had returned, and returned before the read was called.

A write that was interrupted has no return: it may take effect at any time after its call, once. All
of this holds in every linearizable history. The reverse is not true (two reads may disagree on the
order of two writes that overlap); that is left to the checker of linearizability.

Times of different processes compare: they are CLOCK_MONOTONIC of one machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from limpet.fault.check.recorder import Notes, Operation, Result
from limpet.fault.check.self_check import LOADED, describe

EXAMPLES_MAX: Final = 5
NEVER: Final = np.iinfo(np.int64).max
FINAL: Final = 0xFFFFFFFF
"""The client of a read after the run."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The numbers of judged reads and writes; the faults, by kind; some of them in words."""

    reads: int
    writes: int
    interrupted: int
    wrong: dict[str, int]
    examples: list[str]

    @property
    def ok(self) -> bool:
        return not self.wrong


def verify(notes: Notes, names: Sequence[str]) -> Verdict:
    """Judge a history of PUT and GET notes; `names[key]`: the key's name in messages."""
    is_read = notes["op"] == Operation.GET
    unexpected = np.unique(notes["op"][~is_read & (notes["op"] != Operation.PUT)])
    if len(unexpected):
        raise ValueError(f"only gets and puts can be verified, not operations {unexpected}")
    writes, reads = _writes(notes[~is_read]), notes[is_read & (notes["result"] != Result.UNKNOWN)]
    wrong: dict[str, int] = {}
    examples: list[str] = []

    def note(kind: str, which: npt.NDArray[np.bool_], among: Notes, detail: Notes | None) -> None:
        count = int(which.sum())
        if count == 0:
            return
        wrong[kind] = count
        for index in np.flatnonzero(which)[:EXAMPLES_MAX]:
            source = None if detail is None else detail[index]
            examples.append(_explain(kind, among[index], source, names))

    note("missing", reads["result"] == Result.MISSING, reads, None)
    note("torn", reads["result"] == Result.TORN, reads, None)
    reads = reads[reads["result"] == Result.OK]
    source, known = _sources(reads, writes)
    note("never written", ~known, reads, None)
    reads, source = reads[known], source[known]
    note("not yet written", source["call_ns"] > reads["return_ns"], reads, source)
    completed = writes[writes["return_ns"] != NEVER]
    if len(completed):
        note("stale", _stale(reads, source, completed), reads, source)
    return Verdict(int(is_read.sum()), len(writes), len(writes) - len(completed), wrong, examples)


def _writes(writes: Notes) -> Notes:
    """The writes in order of identity, those without a return with NEVER as theirs."""
    writes = np.sort(writes, order="value")
    writes["return_ns"][writes["result"] == Result.UNKNOWN] = NEVER
    if len(writes) and (writes["value"][0] == LOADED or (np.diff(writes["value"]) == 0).any()):
        raise ValueError("two writes have the same identity, or one has that of the load")
    return writes


def _sources(reads: Notes, writes: Notes) -> tuple[Notes, npt.NDArray[np.bool_]]:
    """For each read the write that its value names, and whether its key has such a write."""
    load = np.zeros(1, writes.dtype)
    load["return_ns"] = load["call_ns"] = -1
    table = np.concatenate([load, writes])
    at = np.minimum(np.searchsorted(table["value"], reads["read"]), len(table) - 1)
    source = table[at]
    loaded = source["value"] == LOADED
    known = (source["value"] == reads["read"]) & (loaded | (source["key"] == reads["key"]))
    return source, known


def _stale(reads: Notes, source: Notes, completed: Notes) -> npt.NDArray[np.bool_]:
    """Which reads were called after the return of a write called after their source's return.

    Keys and times are put into one number, key-major, so that one sort, one running maximum and one
    binary search do for all keys together.
    """
    start = int(completed["call_ns"].min())
    span = int(max(completed["return_ns"].max(), reads["call_ns"].max(initial=0))) - start + 2
    keys = int(max(completed["key"].max(), reads["key"].max(initial=0))) + 1
    if span * keys > NEVER:
        raise OverflowError(f"{keys} keys over {span} ns are too many to verify together")

    def at(notes: Notes, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        # 0 stands for every time before the first call of a completed write.
        return np.asarray(
            notes["key"] * span + (np.clip(times, start - 1, start + span - 2) - start + 1)
        )

    returns = at(completed, completed["return_ns"])
    order = np.argsort(returns, kind="stable")
    newest = np.maximum.accumulate(at(completed, completed["call_ns"])[order])
    before = np.searchsorted(returns[order], at(reads, reads["call_ns"]), side="left") - 1
    found = before >= 0
    # A write of a smaller key is smaller than any time of this key, so it never makes a read stale.
    return np.asarray(found & (newest[before] > at(reads, source["return_ns"])), np.bool_)


def _explain(kind: str, read: np.void, source: np.void | None, names: Sequence[str]) -> str:
    when = "after the run" if read["client"] == FINAL else f"by incarnation {read['client']}"
    text = f"{kind}: {names[read['key']]!r}, read {when} at {read['call_ns']} ns"
    if kind not in ("missing", "torn"):
        text += f", gave {describe(int(read['read']))}"
    if source is not None and source["value"] != LOADED:
        over = "never returned" if source["return_ns"] == NEVER else f"{source['return_ns']} ns"
        text += f" (called {source['call_ns']} ns, returned {over})"
    return text
