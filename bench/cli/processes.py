"""`limpet bench kills` and `timeline`: real processes on one store, some killed."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import click

from limpet.bench.cli.options import (
    PATH,
    List,
    check_files,
    interruptible,
    progress_bar,
)
from limpet.bench.figures import kills, timeline, timeline_report
from limpet.bench.peers import machine
from limpet.cli.common import console, json_option, parameter_option, print_json, table, time_text


@click.command("kills")
@click.option("--store", "stores", type=List(str), default="rcuckoo", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--rates", type=List(float), default="0,50,100,200,500", show_default=True,
              help="Kills a second; 0 is always run, and first.")  # fmt: skip
@click.option("--processes", type=click.IntRange(2, 64), default=4, show_default=True,
              help="Processes that work.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True,
              help="How long workers are killed at each rate.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True,
              help="Keys that are there.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of every random choice.")  # fmt: skip
@parameter_option
@click.option(
    "--emulate",
    is_flag=True,
    help="Cut clients off in processes that live on as other clients, as the paper does.",
)
@json_option
def kills_command(
    stores: tuple[str, ...], rates: tuple[float, ...], as_json: bool, **given: Any
) -> None:
    """Measure YCSB-A while clients are killed and replaced, and how long repairs take.

    Each rate is run again with idle processes that are killed in place of clients. Exit status 0
    only if no client was blocked, nothing is lost or leaked, and every store's check holds.
    """  # fmt: skip
    if min(rates, default=0) < 0:
        raise click.UsageError("--rates: kills a second cannot be negative")
    numbers = ("asked", "kills/s", "op/s", "of no kills", "of idle kills", "repairs",
               "took: p50", "p99", "longest", "leaked")  # fmt: skip
    title = f"YCSB-A, {given['processes']} processes, {given['keys']:,} keys"
    title += ", clients are cut off" if given["emulate"] else ", processes are killed"
    shown = table(title, "store", *numbers, right=numbers)
    found = []
    steps = tuple(dict.fromkeys((0.0, *sorted(rates))))
    with interruptible(), progress_bar() as progress:
        task = progress.add_task("", total=len(stores) * len(steps))
        for store in stores:
            for rate in steps:
                progress.update(task, description=f"{store}, {rate:g} kills/s", refresh=True)
                one = kills.run(kills.Setting(store, rate=rate, **given))
                progress.update(task, advance=1, refresh=True)
                found.append(one)
                calm = found[-1 - steps.index(rate)].operations_per_s
                shown.add_row(*_kills_row(one, calm))
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    else:
        shown.caption = (
            "of idle kills: over the rate while as many idle processes are killed and replaced. "
            "took: a repair, from where it begins. The paper, which cuts off: throughput remains "
            "high until about 500 a second."
        )
        console().print(shown)
    if any(one.leaked for one in found):
        raise SystemExit(1)


def _kills_row(one: kills.Kills, calm: float) -> tuple[str, ...]:
    idle = f"{one.operations_per_s / one.idle_per_s:.0%}" if one.idle_per_s else "-"
    return (
        one.store, f"{one.rate:g}", f"{one.kills_per_s:.0f}", f"{one.operations_per_s:,.0f}",
        f"{one.operations_per_s / calm:.0%}" if calm else "-", idle, f"{one.repairs:,}",
        time_text(one.took_p50), time_text(one.took_p99), time_text(one.took_max),
        str(one.leaked),
    )  # fmt: skip


@click.command("timeline")
@click.option("--store", "stores", type=List(str), default="rtx-sherman", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--moment", type=click.Choice(list(timeline.POINTS)), default="insert",
              show_default=True, help="The operation in which a client is killed.")  # fmt: skip
@click.option("--point", help="The crash point to be killed at.  [default: as suits the kind]")
@click.option("--clients", type=click.IntRange(2, 64), default=max(2, min(3, machine.cores())),
              help="Client processes.  [default: 3, or 2 if there are no more cores]")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=2.0, show_default=True,
              help="How long they insert; the kill is half-way, or a growth later.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1, 10_000_000), default=10_000, show_default=True,
              help="Keys that are there at first.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True,
              help="How often each store is run.")  # fmt: skip
@parameter_option
@json_option
@click.option("--csv", "csv_path", type=PATH, help="Write every 1 ms bucket into this file.")
@click.option("--plot", type=PATH, help="Draw the buckets around the kill into this PNG file.")
def timeline_command(
    stores: tuple[str, ...],
    rounds: int,
    as_json: bool,
    csv_path: pathlib.Path | None,
    plot: pathlib.Path | None,
    **given: Any,
) -> None:
    """Kill a client in the midst of an operation, and show the others' inserts ms by ms.

    Figures 14 and 15 of the rTX paper. Exit status 0 only if a client died where it should, and
    the checks of stores hold of which no client was blocked.
    """
    check_files("--plot", plot, csv_path)
    settings = [timeline.Setting(store, **given) for store in stores for _ in range(rounds)]
    for setting in settings:
        setting.check()
    found = []
    with interruptible(), progress_bar() as progress:
        task = progress.add_task("", total=len(settings))
        for setting in settings:
            progress.update(task, description=setting.store, refresh=True)
            found.append(timeline.run(setting))
            progress.update(task, advance=1, refresh=True)
    if csv_path is not None:
        timeline_report.save_csv(found, csv_path)
    if plot is not None:
        timeline_report.save_plot(found, plot)
    if as_json:
        print_json(timeline_report.as_json(found))
        return
    console().print(timeline_report.results_table(found))
    for one in found:
        for line in timeline_report.charts(one):
            console().print(line, markup=False, soft_wrap=True)
