"""Figure 5 of the RCuckoo paper: round trips of an insert, of eight clients, in virtual time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from rich.table import Table

from limpet.bench.figures.cuckoo_tables import (
    FULL,
    ROWS_PER_LOCK,
    VALUE,
    table_of,
)
from limpet.cli.common import table, time_text
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed
from limpet.stores.rcuckoo.layout import SLOTS

LOCKS_PER_MESSAGE: Final = (1, 2, 4, 8, 16, 32, 64)
CLIENTS: Final = 8
SMALL_ROWS: Final = 512


@dataclasses.dataclass(frozen=True)
class Contended:
    """Inserts of eight clients that fill a table of 512 rows to 95 % together, in round trips."""

    rows_per_lock: int
    locks_per_message: int
    inserts: int
    full: int
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    p99_ns: float


def contended(rows_per_lock: int, locks_per_message: int, seed: int) -> Contended:
    """Fill the small table with eight clients, in virtual time."""
    inserts = int(FULL * SLOTS * SMALL_ROWS)
    ops = inserts // CLIENTS
    workload = Workload(
        "rcuckoo", CLIENTS, ops=ops, keys=inserts - CLIENTS * ops or 1, key_size=12,
        value_size=len(VALUE), warm_up=0, write_share=1.0, seed=seed, fresh=True,
        parameters={
            "capacity": _small_capacity(), "key_size": 15, "value_size": len(VALUE),
            "rows_per_lock": rows_per_lock, "locks_per_message": locks_per_message,
        },
    )  # fmt: skip
    kinds = {kind.kind: kind for kind in run_timed(workload, PRESETS["rdma"]).kinds}
    done: KindResult = kinds["insert"]
    return Contended(
        rows_per_lock, locks_per_message, done.count,
        kinds["full"].count if "full" in kinds else 0,
        done.round_trips, done.round_trips_p50, done.round_trips_p99, done.p99_ns,
    )  # fmt: skip


def _small_capacity() -> int:
    with table_of(SMALL_ROWS) as store:
        return int(store.parameters.capacity)


def contended_table(found: Sequence[Contended]) -> Table:
    """Figure 5."""
    columns = tuple(str(each) for each in ROWS_PER_LOCK)
    title = (
        f"figure 5: round trips of an insert, 99th percentile, {CLIENTS} clients fill "
        f"{SMALL_ROWS} rows to {FULL:.0%}; by locks per "
        "message and rows per lock"
    )
    shown = table(title, "locks", *columns, "full", right=columns)
    for locks in LOCKS_PER_MESSAGE:
        row = [one for one in found if one.locks_per_message == locks]
        shown.add_row(
            str(locks), *(f"{one.round_trips_p99:.0f}" for one in row),
            str(sum(one.full for one in row)),
        )  # fmt: skip
    last = [one for one in found if one.locks_per_message == LOCKS_PER_MESSAGE[-1]]
    shown.add_row("64: mean", *(f"{one.round_trips:.2f}" for one in last), "")
    shown.add_row("64: p99 time", *(time_text(one.p99_ns) for one in last), "")
    shown.caption = "Of the whole insert, in virtual time; the paper's: to take its locks."
    return shown
