"""The commands of `limpet bench` that count, and time, in virtual time."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from limpet.bench.cli.options import COUNTS, List, advancing
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

FIGURES = ("4a", "4b", "4c", "5", "7", "8b")


@click.command("virtual")
@click.option("--store", "stores", type=List(str), default="race", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--mix", "mixes", type=List(str.upper), default=",".join(YCSB_MIXES),
              show_default=True, help="YCSB mixes; W: updates only.")  # fmt: skip
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


@click.command("cuckoo")
@click.option("--figures", type=List(str), default=",".join(FIGURES), show_default=True,
              help="Figures of the paper to count; 4c and 7 are one run.")  # fmt: skip
@click.option("--rows", type=click.IntRange(64, 1 << 20), default=100_000, show_default=True,
              help="Rows of the tables for 4a, 4c and 7.")  # fmt: skip
@click.option("--small-rows", type=click.IntRange(64, 1 << 20), default=10_000, show_default=True,
              help="Rows of the tables for 4b and 8b.")  # fmt: skip
@click.option("--tables", type=click.IntRange(1, 100), default=10, show_default=True,
              help="Tables for each mean of 4b.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of every random choice.")  # fmt: skip
@json_option
def cuckoo_command(figures: tuple[str, ...], as_json: bool, **given: int) -> None:
    """Count the cost of inserts into `rcuckoo` tables, as in the figures of the RCuckoo paper.

    Takes a minute or two. Equal arguments give equal figures on any machine, but for inserts/s.
    """
    if wrong := set(figures) - set(FIGURES):
        raise click.UsageError(f"there is no figure {min(wrong)}; there is {', '.join(FIGURES)}")
    module = simulation("limpet.bench.figures.cuckoo")
    with advancing(module.steps(figures, given["tables"])) as advance:
        found = module.run(figures, advance, **given)
    if as_json:
        print_json(module.as_json(found))
        return
    for shown in module.tables(found):
        console().print(shown)
