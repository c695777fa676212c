"""Is a history one of a queue? In n log n steps, where all values are different.

L. Wang, Z. Liu and others, "Efficient decrease-and-conquer linearizability monitoring" (OOPSLA '25,
arXiv 2410.04581), gives such monitors for queues and other containers. That no other violation is
possible than these four is due to T. Henzinger, A. Sezgin and V. Vafeiadis, "Aspect-oriented
linearizability proofs" (CONCUR '13, theorem 4):

    fresh     a get returns a value before it is put, or that is not put
    repeat    two gets return one value
    order     `a` is put before `b`, and `b` is got before `a`, or `a` never
    witness   a get finds the queue empty, though at each moment of it some value is there

One operation is before another if it returns earlier than the other is called, not in the same
nanosecond. An operation whose effect is known, but not its end, returns at NEVER.

For `order`, values are taken in the order of the calls of their puts; of all values whose puts have
returned earlier, only the one whose get is called last matters. For `witness`, a value is there for
certain between the return of its put and the call of its get; intervals that overlap are joined,
and a get that finds nothing must not lie within one of the joined ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from limpet.fault.check.linearize import NEVER


class Stay(NamedTuple):
    """A value's put and get, with their times; a value that is never got has NEVER in both."""

    value: bytes
    put_call: int
    put_return: int
    get_call: int = NEVER
    get_return: int = NEVER


def queue_fault(stays: Sequence[Stay], empties: Sequence[tuple[int, int]]) -> str:
    """The violation of a history without repeats, or "". `empties`: gets that found nothing."""
    for stay in stays:
        if stay.get_return < stay.put_call:
            return f"{stay.value!r} is got before it is put"
    return _order(stays) or _witness(stays, empties)


def _order(stays: Sequence[Stay]) -> str:
    by_return = sorted(stays, key=lambda stay: stay.put_return)
    last: Stay | None = None
    at = 0
    for stay in sorted(stays, key=lambda stay: stay.put_call):
        while by_return[at].put_return < stay.put_call:
            if last is None or by_return[at].get_call > last.get_call:
                last = by_return[at]
            at += 1
        if last is not None and last.get_call > stay.get_return:
            return f"{last.value!r} is put before {stay.value!r}, which is got first"
    return ""


def _witness(stays: Sequence[Stay], empties: Sequence[tuple[int, int]]) -> str:
    starts: list[int] = []
    ends: list[int] = []
    for stay in sorted(stays, key=lambda stay: stay.put_return):
        if stay.put_return >= stay.get_call:
            continue
        if ends and stay.put_return < ends[-1]:
            ends[-1] = max(ends[-1], stay.get_call)
        else:
            starts.append(stay.put_return)
            ends.append(stay.get_call)
    for call, end in empties:
        at = bisect_left(starts, call) - 1
        if at >= 0 and end < ends[at]:
            return f"a get called at {call} finds nothing, and there is a value all the time"
    return ""
