"""The log of events of a pool's clients and nodes: a ring in the control segment.

Entry, 64 bytes: 0 sequence number + 1, written last; 8 kind; 16 subject (client id or node);
24 its pid; 32 client that caused the event; 40 wall-clock time in ns; 48 ns from the moment when a
death was noticed to the event; of a client that was fenced, from the last look at it to its end.
The process that notes an event also logs it, at level INFO, to the logger "limpet.events".
A reader takes an entry only if the sequence number belongs to its place, before and after it reads.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.layout import EVENT_COUNT, EVENT_RING, EVENT_SIZE, EVENTS

if TYPE_CHECKING:
    from limpet.shm.endpoint.fabric import Endpoint

log: Final = logging.getLogger("limpet.events")
EVENT_KINDS: Final = (
    "?",
    "recovered",
    "fenced",
    "suspended",
    "node failed",
    "node restored",
    "node excluded",
    "node added",
)
MASK: Final = (1 << 64) - 1
RECOVERED, FENCED, SUSPENDED, NODE_FAILED, NODE_RESTORED, NODE_EXCLUDED, NODE_ADDED = range(1, 8)


def note(endpoint: Endpoint, kind: int, subject: int, pid: int, by: int, took_ns: int) -> None:
    """Write an event to the ring. `by`: the client that caused it."""
    number = endpoint.faa(EVENT_COUNT, 1)
    at = EVENT_RING + number % EVENTS * EVENT_SIZE
    endpoint.store(at, 0)
    values = (kind, subject, pid, by, time.time_ns(), took_ns)
    for offset, value in enumerate(values, 1):
        endpoint.store(at + 8 * offset, value)
    endpoint.store(at, number + 1 & MASK)


def read(endpoint: Endpoint, since: int = 0) -> list[dict[str, Any]]:
    """The last events, oldest first, from number `since` on.

    Events are numbered from 0. An event whose number is missing was overwritten, or is being
    written.
    """
    found = []
    last = endpoint.load(EVENT_COUNT)
    for number in range(max(since, last - EVENTS), last):
        at = EVENT_RING + number % EVENTS * EVENT_SIZE
        words = [endpoint.load(at + 8 * i) for i in range(7)]
        if words[0] == number + 1 == endpoint.load(at) and words[1] < len(EVENT_KINDS):
            words[0] = number
            names = ("number", "kind", "subject", "pid", "by", "time_ns", "took_ns")
            event: dict[str, Any] = dict(zip(names, words, strict=True))
            event["kind"] = EVENT_KINDS[words[1]]
            found.append(event)
    return found
