"""`limpet bench virtual`: YCSB's mixes in virtual time."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from limpet.bench.cli.options import COUNTS, List
from limpet.bench.peers.ycsb import YCSB_MIXES
from limpet.cli.common import (
    console,
    json_option,
    print_json,
    simulation,
    table,
    time_text,
)
from limpet.cli.timed import timed_options
from limpet.fault.explore.sim_latency import model_lines


@click.command("virtual")
@click.option("--store", "stores", type=List(str), default="race", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--mix", "mixes", type=List(str.upper), default=",".join(YCSB_MIXES),
              show_default=True, help="YCSB mixes; W: updates only; I: inserts only.")  # fmt: skip
@click.option("--clients", type=COUNTS, default="1,8,64,320", show_default=True,
              help="Numbers of simulated clients.")  # fmt: skip
@click.option("--ops", type=click.IntRange(1), default=50, show_default=True,
              help="Operations of each client.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1), default=1000, show_default=True,
              help="Keys that are there.")  # fmt: skip
@click.option("--value-size", type=click.IntRange(8, 8192), default=64, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@timed_options
@json_option
def virtual_command(as_json: bool, **given: Any) -> None:
    """Run YCSB's mixes with many clients in virtual time, on the clock of a latency model.

    Each kind of store runs with the nodes and parameters of its paper. A parameter of one of them
    is --parameter KIND.NAME=VALUE.

    Equal arguments give equal figures, on any machine.
    """
    numbers = ("clients", "ops/s", "p50", "p99", "round trips", "exchanges", "read B", "written B")
    shown = table(
        f"virtual time, {given['profile']}", "store", "mix", "operation", *numbers, right=numbers
    )
    cells = []
    for cell in simulation("limpet.bench.figures.virtual").run(**given):
        cells.append(cell)
        for kind in cell.report.kinds:
            shown.add_row(
                cell.store, cell.mix, kind.kind, str(cell.clients),
                f"{cell.report.throughput:,.0f}", time_text(kind.p50_ns), time_text(kind.p99_ns),
                f"{kind.round_trips:.2f}", f"{kind.exchanges:.2f}", f"{kind.bytes_read:.0f}",
            f"{kind.bytes_written:.0f}",
            )  # fmt: skip
    if as_json:
        print_json([dataclasses.asdict(cell) for cell in cells])
        return
    shown.caption = "\n".join(model_lines(cells[0].report.model))
    console().print(shown)
    for store in dict.fromkeys(cell.store for cell in cells):
        workload = next(cell.report.workload for cell in cells if cell.store == store)
        console().print(f"{workload}", soft_wrap=True)
