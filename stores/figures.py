"""What the clients of a pool do, and what it holds: for `limpet top` and `limpet metrics`.

Clients count in their slots (FIGURES in shm/endpoint/slots.py), by plain increments, whether or not
they are watched; a look costs them nothing. The next client of a slot counts on in its words. So
the sums over all slots only go up, and miss nothing that a killed client has done. What a slot has
counted since the last look is its present client's, and that of those before it in this time. Rates
are differences of two looks.

Nothing measures the time of an operation. `sample` looks at the pins of all clients, at any moment:
the share of looks in which a client is pinned is the share of its time that it spends in operations
that pin (`busy`), and the counter in the pin says how many these were. So their mean duration is
known, as far as samples tell. Gets of `race`, `rtx-race` and `fusee` have no pin, and are in
neither. A remote client's pin lasts: it has no such figures. Its counts come into its slot four
times in a lease, and when it leaves.

A store's counts are those of its row (its number modulo 21) in all slots, so a new store goes on
with the counts of a dropped one that had its row. They are of its handles' calls: not of
transactions, nor of channels. A channel's own words say what goes through it (channels/states.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.hosts import NAMED
from limpet.shm.endpoint.layout import SLOTS_USED, slot_address
from limpet.shm.endpoint.slots import (
    CHANGED,
    FIGURES,
    FIGURES_COUNT,
    INCARNATION_BITS,
    MACHINE,
    MISSED,
    NAME,
    PIN,
    PIN_MASK,
    PIN_STEP,
    ROW_SIZE,
    ROWS,
    ROWS_COUNT,
)
from limpet.shm.errors import LimpetError, NodeFailed
from limpet.shm.release import text_of
from limpet.stores.registry import CACHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.stores.pool import Pool

SCHEMA: Final = 1
"""Of the reports. It goes up when a name goes away, or means something else; not for a new one."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
VERBS: Final = (
    "round_trips", "reads", "writes", "atomics", "cas", "cas_lost", "bytes_read", "bytes_written",
)  # fmt: skip
"""The first counts of verbs in the foreground, as verbs.pyx has them."""
COUNTS: Final = ("operations", "changes", "misses", *VERBS)
EVENTS_SHOWN: Final = 5
REMOTE: Final = re.compile(r"(?=.{8}$)net[0-9]+-?[0-9a-f]*")
"""The first 8 characters of the name that a remote client gives its host (shm/pool.py)."""


class Figures:
    """Looks at a pool that this process has open."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._caches: dict[str, Any] = {}
        self._seen = 0
        self._events: Counter[str] = Counter()
        self._last: list[dict[str, Any]] = []
        self._samples = 0
        self._pins: dict[int, _Pins] = {}

    def look(self) -> dict[str, Any]:
        """All counts so far. Takes some verbs for each client, store, node and channel; no look at
        keys. A part that cannot be read, as a node is lost, is left out."""
        pool = self.pool
        slots = pool.exclusively(self._slots)
        remote = {slot["slot"] for slot in slots if slot["remote"]}
        found: dict[str, Any] = {
            "at_s": time.monotonic(),
            "time_ns": time.time_ns(),
            "slots": slots,
            "clients": [
                {**row, "remote": row["slot"] in remote, "memory": _private_bytes(row)}
                for row in pool.clients()
            ],
            "stores": self._stores(slots),
            "nodes": self._nodes(),
            "channels": [],
        }
        if not pool.parameters.durable:
            with contextlib.suppress(LimpetError):
                found["channels"] = pool.channels.list(state=True)
        for event in pool.events(self._seen):
            self._seen = event["number"] + 1
            self._events[event["kind"]] += 1
            self._last = [*self._last, event][-EVENTS_SHOWN:]
        found["events"] = dict(self._events)
        found["last_events"] = self._last
        found["pins"] = {slot: seen.figures() for slot, seen in self._pins.items()}
        self._pins = {}
        return found

    def _slots(self) -> list[dict[str, Any]]:
        """The counts of each client slot that was ever used."""
        pool, load = self.pool, self.pool.endpoint.load
        mine = {ident >> INCARNATION_BITS for ident in pool.idents()}
        found = []
        for slot in range(load(SLOTS_USED)):
            at = slot_address(slot)
            named = load(at + MACHINE) & NAMED and REMOTE.fullmatch(text_of(load(at + NAME)))
            raw = pool.endpoint.read(at + FIGURES, 8 * FIGURES_COUNT)
            words = memoryview(raw).cast("Q").tolist()
            rows = [words[row : row + ROW_SIZE] for row in range(ROWS, _END, ROW_SIZE)]
            sums = (sum(row[column] for row in rows) for column in (0, CHANGED, MISSED))
            counts = dict(zip(COUNTS, (*sums, *words), strict=False))
            found.append({
                "slot": slot, "ours": slot in mine, "remote": bool(named),
                **counts, "rows": rows,
            })  # fmt: skip
        return found

    def _stores(self, slots: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The counts of each store. Of more than 21, some share a row: `shared_with`."""
        listed = [(entry.number % ROWS_COUNT, row) for entry, row in self.pool._stores()]
        found = []
        for at, row in listed:
            rows = [slot["rows"][at] for slot in slots]
            counts = [sum(one[column] for one in rows) for column in (0, CHANGED, MISSED)]
            others = [one["name"] for place, one in listed if place == at and one is not row]
            found.append({
                "name": row["name"], "kind": row["kind"], "row": at, "shared_with": others,
                **dict(zip(COUNTS, counts, strict=False)),
                "cache": self._cache(row["name"]) if row["kind"] in CACHES else None,
            })  # fmt: skip
        return found

    def _cache(self, name: str) -> dict[str, Any] | None:
        try:
            if name not in self._caches:
                self._caches[name] = self.pool.cache(name)
            stats: dict[str, Any] = self._caches[name].stats()
        except LimpetError:  # it was dropped, or is lost
            self._caches.pop(name, None)
            return None
        return stats

    def _nodes(self) -> list[dict[str, Any]]:
        pool, layout = self.pool, self.pool.layout
        found = []
        for row in pool.nodes():
            used = None
            with contextlib.suppress(NodeFailed):
                free = pool.exclusively(partial(pool.blocks.free_count, row["node"]))
                used = (layout.block_count - free) * layout.block_size
            of = layout.block_count * layout.block_size
            found.append({"node": row["node"], "state": row["state"], "size": of, "used": used})
        return found

    def store(
        self, name: str, before: dict[str, Any], after: dict[str, Any]
    ) -> dict[str, Any] | None:
        """More of one store between two looks: its counts for each client, and its growth; None:
        it is gone. Growth reads all subtables of hash stores."""
        seconds = max(after["at_s"] - before["at_s"], 1e-9)
        rows = [_named(name, look["stores"]) for look in (before, after)]
        if rows[1] is None:
            return None
        at = rows[1]["row"]
        earlier = {slot["slot"]: slot["rows"][at] for slot in before["slots"]}
        counted = {}
        for slot in after["slots"]:
            past = earlier.get(slot["slot"], (0, 0, 0))
            moved = [max(0, now - then) for now, then in zip(slot["rows"][at], past, strict=True)]
            counted[slot["slot"]] = dict(zip(COUNTS, moved, strict=False))
        clients = [
            {"slot": row["slot"], "pid": row["pid"], **_a_second(counted[row["slot"]], seconds)}
            for row in after["clients"]
            if row["slot"] in counted and counted[row["slot"]]["operations"]
        ]
        return {
            **_store(rows[0] or rows[1], rows[1], seconds),
            "clients": clients,
            "growth": _named(name, self.pool.growth()),
        }

    def sample(self) -> None:
        """Look at the pins of all clients; at most a few us each."""
        pool = self.pool
        if pool.remote:
            return

        def pins() -> list[tuple[int, int]]:
            load = pool.endpoint.load
            at = [slot_address(slot) for slot in range(load(SLOTS_USED))]
            return [(load(slot), load(slot + PIN)) for slot in at]

        now = time.monotonic()
        for slot, (state, pin) in enumerate(pool.exclusively(pins)):
            self._pins.setdefault(slot, _Pins()).note(now, state, pin)


_END: Final = ROWS + ROW_SIZE * ROWS_COUNT


class _Pins:
    """What samples have seen of one slot since the last look."""

    def __init__(self) -> None:
        self.samples = 0
        self.pinned = 0
        self.state = 0
        self.first_s = self.last_s = 0.0
        self.counter = -1
        self.count = 0

    def note(self, now: float, state: int, pin: int) -> None:
        self.samples += 1
        if not pin:
            return
        self.pinned += 1
        counter = pin & PIN_MASK
        if state != self.state or self.counter < 0:
            self.state, self.count, self.first_s = state, 0, now  # another client has the slot
        else:
            self.count += (counter - self.counter & PIN_MASK) // PIN_STEP
        self.counter, self.last_s = counter, now

    def figures(self) -> dict[str, float | None]:
        """`busy`, and the mean of an operation that pins in us; None: it was hardly seen."""
        busy = self.pinned / self.samples
        span = self.last_s - self.first_s
        mean = busy * span / self.count * 1e6 if self.count else None
        return {"busy": busy, "pinned_us": mean}


def _named(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((row for row in rows if row["name"] == name), None)


def _private_bytes(row: dict[str, Any]) -> int | None:
    """Private memory of a client's process, if it is one of this host that may be asked."""
    if row["host"] == "local":
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{row['pid']}/statm").read_text().split()
            return (int(resident) - int(shared)) * PAGE
    return None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The report of two looks: what went on between them, a second, and what there was at the last.
    Its names are in docs/operations.md."""
    seconds = max(after["at_s"] - before["at_s"], 1e-9)
    earlier = {slot["slot"]: slot for slot in before["slots"]}
    slots = {}
    for slot in after["slots"]:
        past = earlier.get(slot["slot"], {})
        slots[slot["slot"]] = {name: max(0, slot[name] - past.get(name, 0)) for name in COUNTS}
    theirs = [slot["slot"] for slot in after["slots"] if not slot["ours"]]
    total = {name: sum(slots[slot][name] for slot in theirs) for name in COUNTS}
    repairs = after["events"].get("recovered", 0)
    return {
        "schema": SCHEMA,
        "time_ns": after["time_ns"],
        "seconds": seconds,
        "total": {
            **_a_second(total, seconds),
            "operations": sum(slot["operations"] for slot in after["slots"]),
            "clients": sum(not row["ours"] for row in after["clients"]),
            "repairs": repairs,
            "repairs_per_s": (repairs - before["events"].get("recovered", 0)) / seconds,
        },
        "clients": [_client(row, slots, after["pins"], seconds) for row in after["clients"]],
        "stores": _per_name(_store, before["stores"], after["stores"], seconds),
        "nodes": _per_node(before["nodes"], after["nodes"], seconds),
        "channels": _per_name(_channel, before["channels"], after["channels"], seconds),
        "events": after["last_events"],
    }


def _a_second(counts: dict[str, int], seconds: float) -> dict[str, Any]:
    gets = counts["operations"] - counts["changes"]
    return {
        "operations_per_s": counts["operations"] / seconds,
        "changes_per_s": counts["changes"] / seconds,
        "hit_ratio": _ratio(gets - counts["misses"], gets),
        **{f"{name}_per_s": counts[name] / seconds for name in VERBS if name in counts},
    }


def _client(
    row: dict[str, Any], slots: dict[int, dict[str, int]], pins: dict[int, Any], seconds: float
) -> dict[str, Any]:
    none = dict.fromkeys(COUNTS, 0)
    seen = None if row["remote"] else pins.get(row["slot"])
    return {
        **row, **_a_second(slots.get(row["slot"], none), seconds),
        **(seen or {"busy": None, "pinned_us": None}),
    }  # fmt: skip


def _per_name(
    make: Any, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    earlier = {row["name"]: row for row in before}
    return [make(earlier.get(row["name"], row), row, seconds) for row in after]


def _store(past: dict[str, Any], row: dict[str, Any], seconds: float) -> dict[str, Any]:
    counts = {name: max(0, row[name] - past[name]) for name in COUNTS[:3]}
    cache = row["cache"]
    found = {
        "name": row["name"], "kind": row["kind"], "shared_with": row["shared_with"],
        **_a_second(counts, seconds), "operations": row["operations"], "cache": cache,
    }  # fmt: skip
    if cache and past["cache"]:
        hits, misses = (cache[name] - past["cache"][name] for name in ("hits", "misses"))
        found["hit_ratio"] = _ratio(hits, hits + misses)
    return found


def _channel(past: dict[str, Any], row: dict[str, Any], seconds: float) -> dict[str, Any]:
    state, earlier = row["state"], past["state"]
    moved = {
        f"{name}_per_s": (state[name] - earlier.get(name, state[name])) / seconds
        for name in ("puts", "gets")
        if name in state
    }
    return {"name": row["name"], "kind": row["kind"], "size": row["size"], **state, **moved}


def _per_node(
    before: list[dict[str, Any]], after: list[dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    found = []
    for past, row in zip(before, after, strict=True):
        used, earlier = row["used"], past["used"]
        found.append({
            **row,
            "fill": None if used is None else used / row["size"],
            "growth_per_s": None if None in (used, earlier) else (used - earlier) / seconds,
        })  # fmt: skip
    return found
