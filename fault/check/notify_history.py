"""The verdict on a history of one condition: which waits were notified, and which were told so.

A wait begins, a notify takes place, and a wait returns while the client has the condition's lock.
So these moments have one order, and there is nothing to search for: `notify(n)` is for the n
clients whose waits began first, of those that have not returned, are not notified, and live.

    lost     a wait that was notified returns, and says that its time was over
    excess   a wait that no notify was for says that it was notified

After a death no excess is found: a client that dies with the lock has all that wait told, and the
notify of a dead client goes to another one (condition.py). Where a client died during a notify, the
notify may have been for it, or for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from limpet.fault.check.linearize import NEVER, Timed


class NotifyOp(NamedTuple):
    """`kind`: "wait", which was `told` that it was notified or not; "notify" of `most`; "die"."""

    kind: str
    client: int
    most: int = 0
    told: bool | None = None


def judge_notifies(history: Sequence[Timed[NotifyOp]]) -> str:
    """The fault of a history, or "". A call is noted when the client has the lock, a return before
    the lock is given back."""
    waits = [timed for timed in history if timed.op.kind == "wait"]
    deaths = {timed.op.client: timed.call_ns for timed in history if timed.op.kind == "die"}
    sure: set[int] = set()
    perhaps: set[int] = set()
    """The waits, by their calls, that were notified for certain; that may have been."""
    notifies = sorted((one for one in history if one.op.kind == "notify"), key=lambda n: n.call_ns)
    for notify in notifies:
        called, returned = notify.call_ns, notify.return_ns
        left = notify.op.most
        doubtful = 0
        for wait in sorted(waits, key=lambda wait: wait.call_ns):
            death = deaths.get(wait.op.client, NEVER)
            over = wait.call_ns > called or (wait.return_ns or NEVER) < called or death < called
            if over or wait.call_ns in sure:
                continue
            if left > 0 and returned is not None:
                sure.add(wait.call_ns)
            elif left > 0 or doubtful > 0:
                perhaps.add(wait.call_ns)
                doubtful -= left <= 0
            left -= 1
            doubtful += death < (returned or NEVER)
    first = min(deaths.values(), default=NEVER)
    for wait in waits:
        if wait.return_ns is None:
            continue
        if wait.call_ns in sure and not wait.op.told:
            return f"lost: {wait} was notified"
        excused = wait.call_ns in sure | perhaps or first < wait.return_ns
        if wait.op.told and not excused:
            return f"excess: {wait} was not notified"
    return ""
