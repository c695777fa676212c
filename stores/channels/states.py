"""The state of channels, for `inspect` and `top`: holders, waiters, lengths.

A channel is not opened for that: a client that opens a queue takes part in it, and a look must not
make one. The words are read as the modules named below describe them, in one operation for each
channel. They change meanwhile, so a state is roughly that of one moment.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT, slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS, INCARNATION_MASK
from limpet.shm.errors import LimpetError
from limpet.stores.channels.holders import layout as holders
from limpet.stores.channels.jobs import layout as jobs
from limpet.stores.channels.layout import CLAIMED, LINE, SLEEPERS
from limpet.stores.channels.lock import ticket_layout as tickets
from limpet.stores.channels.queue import layout as queues

READ_MAX: Final = 1 << 20
"""Bytes of places of jobs that are read to name their holders; of more, no holder is named."""


def state_of(pool: Any, name: str, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The state of a channel of this kind; {}: it is gone, or its kind has none to show.

    lock        `holder` and `waiters`: pids; `inherited`
    semaphore   `taken`, `free`, `holders`: permits by pid, `waiting`: processes
    rwlock      `writer`: pid, `readers`: holds by pid, `waiting_readers`, `waiting_writers`
    queue       `length`, `puts` and `gets` so far, `consumers_wait`, `participants`: pids
    jobs        `ready`, `delayed`, `held`, `dead`, `kept`, `free`, `puts` so far, `consumers_wait`,
                `holders`: held jobs by pid, or None
    deque       `length`
    event       `set`
    barrier     `waiting`: parties, `broken`

    A pid is None of a client that is gone.
    """
    look = _LOOKS.get(kind)
    if look is None:
        return {}
    catalogue = pool.channels.catalogue
    mark = catalogue.mark(name)
    with pool.client:
        at = catalogue.address_of(name) if mark else 0
        return look(_Look(pool, catalogue, name, mark, parameters), at) if at else {}


def described(pool: Any, name: str) -> str:
    """The state of a channel in words, for its repr; empty: it cannot be looked at now, as within
    an operation."""
    try:
        found = pool.channels.catalogue.describe(name.encode())
        state = state_of(pool, name, found.get("kind", ""), found.get("parameters") or {})
    except LimpetError:
        return ""
    return ", ".join(f"{key} {value}" for key, value in state.items())


class _Look:
    """What the looks at one channel need; in an operation."""

    def __init__(
        self, pool: Any, catalogue: Any, name: str, mark: int, parameters: dict[str, Any]
    ) -> None:
        self.pool = pool
        # ORDER: not `pool.channels` in an operation: a thread that opens a channel has the lock of
        # that, and waits for the operation.
        self.catalogue = catalogue
        self.name = name
        self.mark = mark
        self.parameters = parameters
        self.load = pool.endpoint.load

    def words(self, at: int, count: int) -> list[int]:
        return list(memoryview(self.pool.endpoint.read(at, 8 * count)).cast("Q"))

    def part(self, name: str, node: int | None = None) -> int:
        """Address of the memory of a part; 0: it is not there."""
        return int(self.catalogue.address_of(f"{self.name}.{name}", self.mark, node))

    def pid(self, ident: int) -> int | None:
        """The pid of a client; None: it is gone."""
        slot = ident >> INCARNATION_BITS
        if not ident or slot >= self.pool.parameters.clients:
            return None
        word = self.load(slot_address(slot))
        alive = word >> 60 and not (word ^ ident) & INCARNATION_MASK
        return int(self.pool.membership.pid(word)) if alive else None

    def seats(self) -> list[int]:
        """The client ids in the rows of participants; 0: the row is free, or not ready."""
        at = self.part("participants")
        words = self.words(at, self.pool.parameters.clients) if at else []
        return [0 if word & CLAIMED else word for word in words]


def _lock(look: _Look, at: int) -> dict[str, Any]:
    places = look.parameters["places"]
    word, head, *queue = look.words(at, 2 + places)
    waiters = []
    for ticket in range(head + 1, head + 1 + places):
        place = queue[ticket % places]
        taken = place >> tickets.ROUND_SHIFT == (ticket // places + 1 & tickets.ROUND_MASK)
        if taken and place & tickets.STATE_MASK in (tickets.WAITING, tickets.SLEEPING):
            slot = place >> tickets.SLOT_SHIFT & tickets.SLOT_MASK
            there = look.load(slot_address(slot)) & INCARNATION_MASK
            life = place >> tickets.LIFE_SHIFT & tickets.LIFE_MASK
            ident = slot << INCARNATION_BITS | there
            waiters.append(None if (there ^ life) & tickets.LIFE_MASK else look.pid(ident))
    return {
        "holder": look.pid(word & tickets.HOLDER),
        "held": bool(word & tickets.HOLDER),
        "waiters": waiters,
        "inherited": bool(word & tickets.INHERITED),
    }


def _table(look: _Look, at: int) -> tuple[int, list[tuple[int | None, int]]]:
    """The state of a table of holders (holders.py), and pid and value of each row with holds."""
    clients = look.pool.parameters.clients
    words = look.words(at, (holders.ROWS + clients * LINE) // 8)
    word, rows = words[0], words[holders.ROWS // 8 :: LINE // 8]
    index = word & holders.RECORD_MASK
    record = (holders.ROWS + (index >> 1) * LINE + holders.RECORDS) // 8 + 2 * (index & 1)
    if not word or record + 1 >= len(words):
        return 0, []
    rows[word >> holders.ROW_SHIFT & holders.ROW_MASK] = words[record + 1]
    values = [row & (holders.COUNT | holders.WRITES) for row in rows]
    seats = look.seats()
    return words[record], [(look.pid(seats[n]), one) for n, one in enumerate(values) if one]


def _lined(state: int, line: int) -> int:
    return state >> holders.LINED_SHIFT + line * holders.LINED_BITS & holders.LINED_MASK


def _semaphore(look: _Look, at: int) -> dict[str, Any]:
    state, rows = _table(look, at)
    taken = state & holders.TAKEN
    taken -= (taken & 1 << 31) << 1  # more were released than acquired
    return {
        "taken": taken,
        "free": look.parameters["value"] - taken,
        "holders": {str(pid): value & holders.COUNT for pid, value in rows},
        "waiting": _lined(state, 0),
    }


def _rwlock(look: _Look, at: int) -> dict[str, Any]:
    state, rows = _table(look, at)
    return {
        "writer": next((pid for pid, value in rows if value & holders.WRITES), None),
        "readers": {str(pid): one & holders.COUNT for pid, one in rows if one & holders.COUNT},
        "waiting_readers": _lined(state, 0),
        "waiting_writers": _lined(state, 1),
    }


def _queue(look: _Look, at: int) -> dict[str, Any]:
    # ORDER: the head first, so that the length is not below 0.
    head, tail = look.load(at + queues.HEAD), look.load(at + queues.TAIL)
    return {
        "length": tail - head,
        "puts": tail,
        "gets": head,
        "consumers_wait": bool(look.load(at + queues.NEWS) & SLEEPERS),
        "participants": [look.pid(ident) for ident in look.seats() if ident],
    }


def _jobs(look: _Look, at: int) -> dict[str, Any]:
    words = look.words(at, jobs.CONTROL_SIZE // 8)

    def count(kind: int) -> int:
        return words[(jobs.LISTS + jobs.LIST_SIZE * kind + jobs.COUNT) // 8]

    levels = range(jobs.LEVELS, jobs.LIST_COUNT)
    return {
        "ready": sum(count(level) for level in levels),
        "delayed": count(jobs.DELAYED_JOBS),
        "held": count(jobs.HELD_JOBS),
        "dead": count(jobs.LETTERS),
        "kept": count(jobs.RESULTS),
        "free": count(jobs.FREE_PLACES),
        "puts": max(0, words[jobs.TICKET // 8] - 1),
        "consumers_wait": bool(words[jobs.NEWS // 8] & SLEEPERS),
        "holders": _job_holders(look, at),
    }


def _job_holders(look: _Look, at: int) -> dict[str, int] | None:
    stride = (jobs.DATA + look.parameters["item_size"] + LINE - 1) // LINE * LINE
    size = look.parameters["maxsize"] * stride
    places = look.part("places", at >> NODE_SHIFT)
    if size > READ_MAX or not places:
        return None
    words = np.frombuffer(look.pool.endpoint.read(places, size), dtype="<u8")[:: stride // 8]
    held = (words[words & jobs.STATE_MASK == jobs.HELD] >> jobs.OWNER_SHIFT).tolist()
    return dict(Counter(str(look.pid(ident)) for ident in held))


def _deque(look: _Look, at: int) -> dict[str, Any]:
    return {"length": look.load(at) & 0xFFFF_FFFF}


def _event(look: _Look, at: int) -> dict[str, Any]:
    return {"set": bool(look.load(at) & 1)}


def _barrier(look: _Look, at: int) -> dict[str, Any]:
    word = look.load(at)
    return {"waiting": word & 0xFF, "broken": bool(word >> 32 & 1)}


_LOOKS: Final = {
    "lock": _lock,
    "semaphore": _semaphore,
    "rwlock": _rwlock,
    "queue": _queue,
    "jobs": _jobs,
    "deque": _deque,
    "event": _event,
    "barrier": _barrier,
}
