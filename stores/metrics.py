"""The figures of a pool as metrics: for Prometheus (cli/metrics.py) and OpenTelemetry
(adapters/opentelemetry.py), which so have the same names, labels and values.

Counters only go up, whichever processes are killed. Every family is in each look, some without
samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from limpet.stores.figures import VERBS

CACHE_COUNTS: Final = ("hits", "misses", "sets", "deletes", "evictions", "expirations",
                       "computations")  # fmt: skip
CACHE_SIZES: Final = ("items", "bytes", "max_items", "max_bytes")
JOB_STATES: Final = ("ready", "delayed", "held", "dead", "kept", "free")
Kind: TypeAlias = Literal["counter", "gauge"]


class Family(NamedTuple):
    """A metric. `samples`: of each, the values of the labels, and its own."""

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], float]]


def families(found: dict[str, Any]) -> Iterator[Family]:
    """All metrics of a look (`Figures.look`)."""
    yield from _of_pool(found)
    yield from _of_stores(found["stores"])
    yield from _of_nodes(found["nodes"])
    yield from _of_channels(found["channels"])


def _made(kind: Kind, name: str, text: str, rows: Any, *labels: str) -> Family:
    """A family; `rows`: the values of the labels, and then the sample's own, or None."""
    samples = [
        (tuple(str(one) for one in values), value) for *values, value in rows if value is not None
    ]
    return Family(kind, f"limpet_{name}", text, labels, samples)


def _of_pool(found: dict[str, Any]) -> Iterator[Family]:
    slots = found["slots"]
    alive = [row for row in found["clients"] if not row["ours"]]
    states = {state: sum(row["state"] == state for row in alive) for state in ("live", "dead")}
    yield _made("gauge", "clients", "Clients of the pool, without this one.",
                  states.items(), "state")  # fmt: skip
    yield _made("counter", "slot_operations", "Operations of the clients of a slot.",
                  [(slot["slot"], slot["operations"]) for slot in slots], "slot")  # fmt: skip
    for verb in VERBS:
        text = f"{verb.replace('_', ' ').capitalize()} of all clients, in the foreground."
        yield _made("counter", verb, text, [(sum(slot[verb] for slot in slots),)])
    yield _made("gauge", "client_memory_bytes", "Private memory of a client's process.",
                  [(row["slot"], row["pid"], row["memory"]) for row in alive],
                  "slot", "pid")  # fmt: skip
    yield _made("counter", "events", "Clients recovered or fenced, nodes failed, that were seen.",
                  found["events"].items(), "kind")  # fmt: skip


def _of_stores(stores: list[dict[str, Any]]) -> Iterator[Family]:
    names = [(row["name"], row["kind"]) for row in stores]
    for count, text in (
        ("operations", "Operations on a store."),
        ("changes", "Those of them that change it."),
        ("misses", "Gets that found no value."),
    ):
        rows = [(*name, row[count]) for name, row in zip(names, stores, strict=True)]
        yield _made("counter", f"store_{count}", text, rows, "store", "kind")
    caches = [row for row in stores if row["cache"]]
    for count in CACHE_COUNTS:
        values = [(row["name"], row["cache"][count]) for row in caches]
        yield _made("counter", f"cache_{count}", f"{count.capitalize()} of a cache.", values,
                      "cache")  # fmt: skip
    for size in CACHE_SIZES:
        values = [(row["name"], row["cache"][size]) for row in caches]
        yield _made("gauge", f"cache_{size}", f"{size} of a cache.", values, "cache")


def _of_nodes(nodes: list[dict[str, Any]]) -> Iterator[Family]:
    yield _made("gauge", "node_in_service", "1: the memory node is in service.",
                  [(row["node"], int(row["state"] == "in service")) for row in nodes],
                  "node")  # fmt: skip
    yield _made("gauge", "node_bytes", "Memory for objects of a node.",
                  [(row["node"], row["size"]) for row in nodes], "node")  # fmt: skip
    yield _made("gauge", "node_used_bytes", "Memory of a node in blocks that have an owner.",
                  [(row["node"], row["used"]) for row in nodes], "node")  # fmt: skip


def _of_channels(channels: list[dict[str, Any]]) -> Iterator[Family]:
    states = [(row["name"], row["kind"], row["state"]) for row in channels if row["state"]]
    locks = [(name, state) for name, kind, state in states if kind == "lock"]
    yield _made("gauge", "lock_held", "1: a process holds the lock.",
                  [(name, int(state["held"])) for name, state in locks], "lock")  # fmt: skip
    yield _made("gauge", "lock_waiters", "Processes that wait for the lock.",
                  [(name, len(state["waiters"])) for name, state in locks], "lock")  # fmt: skip
    yield _made("gauge", "queue_length", "Elements of a queue or deque.",
                  [(name, state["length"]) for name, _, state in states if "length" in state],
                  "queue")  # fmt: skip
    for count in ("puts", "gets"):
        yield _made("counter", f"queue_{count}", f"{count.capitalize()} of a queue.",
                      [(name, state[count]) for name, _, state in states if count in state],
                      "queue")  # fmt: skip
    yield _made("gauge", "jobs", "Places of a queue with acks, by state.",
                  [(name, each, state[each]) for name, kind, state in states if kind == "jobs"
                   for each in JOB_STATES], "queue", "state")  # fmt: skip
