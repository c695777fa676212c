"""`limpet bench`: the command line of the benchmarks."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from limpet.bench import contention, kills, machine, peers, report
from limpet.bench.drivers import PEERS_EXTRA
from limpet.bench.ycsb import READ_SHARE, Workload
from limpet.cli.common import (
    console,
    json_option,
    parameter_option,
    print_json,
    simulation,
    table,
    time_text,
)
from limpet.fault.sim_latency import PRESETS
from limpet.shm.errors import ParameterError


class _List(click.ParamType):
    """Words with commas between them, each converted, none twice."""

    name = "list"

    def __init__(self, convert: Callable[[str], object]) -> None:
        self.convert_word = convert

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[object, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        try:
            return tuple(dict.fromkeys(self.convert_word(word) for word in words))
        except ValueError:
            self.fail(f"{value!r} is not a list such as 1,2", param, ctx)


@click.group()
def bench() -> None:
    """Measure limpet's stores."""


@bench.command("peers")
@click.option(
    "--store",
    "stores",
    type=_List(str),
    default="race",
    show_default=True,
    help="Kinds of limpet's stores to measure; with replicas: fusee:3.",
)
@click.option(
    "--peers",
    "names",
    type=_List(str),
    default=",".join(peers.PEERS),
    show_default=True,
    help="What to measure them against.",
)
@click.option(
    "--processes",
    type=_List(int),
    default="1,2",
    show_default=True,
    help="Numbers of processes to run with.",
)
@click.option(
    "--mix",
    "mixes",
    type=_List(str.upper),
    default=",".join(READ_SHARE),
    show_default=True,
    help="YCSB mixes to run.",
)
@click.option(
    "--rounds",
    type=int,
    default=5,
    show_default=True,
    help="How often everything is measured; medians are reported.",
)
@click.option(
    "--seconds-per-cell",
    type=float,
    default=1.0,
    show_default=True,
    help="Time that a slow store gets for one loop; it then runs fewer operations.",
)
@click.option(
    "--operations",
    type=int,
    default=200_000,
    show_default=True,
    help="Operations of one process in one loop, at most.",
)
@click.option("--records", type=int, default=100_000, show_default=True)
@click.option("--key-bytes", type=int, default=24, show_default=True)
@click.option("--value-bytes", type=int, default=64, show_default=True)
@click.option(
    "--theta",
    type=float,
    default=0.99,
    show_default=True,
    help="Skew of the Zipfian distribution; 0 is uniform.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of every random choice.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--png",
    type=click.Path(dir_okay=False, writable=True, path_type=pathlib.Path),
    help="Draw a bar chart into this file.",
)
def peers_command(
    stores: tuple[str, ...],
    names: tuple[str, ...],
    processes: tuple[int, ...],
    mixes: tuple[str, ...],
    rounds: int,
    seconds_per_cell: float,
    operations: int,
    records: int,
    key_bytes: int,
    value_bytes: int,
    theta: float,
    seed: int,
    as_json: bool,
    png: pathlib.Path | None,
) -> None:
    """Measure stores against LMDB, Redis and other peers, driven by the same loop.

    A peer that is not installed is named as missing, with how to get it. The exit status is 0 only
    if every store and every peer that is there ran to its end.
    """
    try:
        options = peers.Options(
            workload=Workload(records, key_bytes, value_bytes, theta, operations, seed),
            processes=processes,
            mixes=mixes,
            rounds=rounds,
            seconds_per_cell=seconds_per_cell,
        )
        drivers = peers.drivers(stores, names)
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if not drivers:
        raise click.UsageError("there is nothing to measure: name a --store or one of the --peers")
    if png is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise click.UsageError(f"--png needs matplotlib: {PEERS_EXTRA}")
        if not png.absolute().parent.is_dir():
            raise click.UsageError(f"--png: there is no directory {png.absolute().parent}")
    facts = machine.facts()
    outcome = _run(options, drivers)
    if as_json:
        click.echo(json.dumps(report.as_json(outcome, facts), indent=2))
    else:
        report.print_tables(outcome, facts, Console())
    if png is not None and outcome.versions:
        report.save_chart(outcome, facts, png)
    if outcome.failed:
        raise SystemExit(1)


@bench.command("virtual")
@click.option("--store", "stores", type=_List(str), default="race", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--mix", "mixes", type=_List(str.upper), default=",".join(READ_SHARE),
              show_default=True, help="YCSB mixes.")  # fmt: skip
@click.option("--clients", type=_List(int), default="1,8,64,320", show_default=True,
              help="Numbers of simulated clients.")  # fmt: skip
@click.option("--profile", type=click.Choice(list(PRESETS)), default="rdma", show_default=True,
              help="The latency model.")  # fmt: skip
@click.option("--ops", type=click.IntRange(1), default=50, show_default=True,
              help="Operations of each client.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--nodes", type=click.IntRange(1, 8), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@parameter_option
@json_option
def virtual_command(as_json: bool, **given: Any) -> None:
    """Run YCSB's mixes with many clients in virtual time, on the clock of a latency model.

    Equal arguments give equal figures, on any machine.
    """
    numbers = ("clients", "ops/s", "p50", "p99", "round trips", "read B", "written B")
    shown = table(
        f"virtual time, {given['profile']}", "store", "mix", "operation", *numbers, right=numbers
    )
    cells = []
    for cell in simulation("limpet.bench.virtual").run(**given):
        cells.append(cell)
        for kind in cell.report.kinds:
            shown.add_row(
                cell.store, cell.mix, kind.kind, str(cell.clients),
                f"{cell.report.throughput:,.0f}", time_text(kind.p50_ns), time_text(kind.p99_ns),
                f"{kind.round_trips:.2f}", f"{kind.bytes_read:.0f}", f"{kind.bytes_written:.0f}",
            )  # fmt: skip
    if as_json:
        print_json([dataclasses.asdict(cell) for cell in cells])
    else:
        console().print(shown)


@bench.command("roundtrips")
@click.option("--ops", type=click.IntRange(10), default=400, show_default=True,
              help="Operations of each client that are counted.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@json_option
def roundtrips_command(ops: int, keys: int, seed: int, as_json: bool) -> None:
    """Count round trips in virtual time, beside those that the SWARM paper reports.

    Takes a minute or two. Equal arguments give equal figures, on any machine.
    """
    module = simulation("limpet.bench.roundtrips")
    common = list(module.common(ops, keys, seed))
    contended = list(module.contended(ops, seed))
    shared = list(module.shared(ops, seed))
    if as_json:
        print_json([dataclasses.asdict(row) for row in (*common, *contended, *shared)])
        return
    numbers: tuple[str, ...] = ("median", "p99", "mean", "paper", "paper, p99")
    shown = table("YCSB B, 4 clients (Table 2)", "store", "operation", *numbers, right=numbers)
    for row in common:
        result = row.result
        shown.add_row(
            row.store, result.kind, f"{result.round_trips_p50:.0f}",
            f"{result.round_trips_p99:.0f}", f"{result.round_trips:.2f}", *row.paper,
        )  # fmt: skip
    console().print(shown)
    numbers = ("clients", "1", "2", "3", "4", "more", "most", "p50", "p99", "paper: 1, 2, more")
    shown = table("YCSB A, one key (section 7.8)", "store", "operation", *numbers, right=numbers)
    for row in contended:
        result = row.result
        shares = [result.shares.get(count, 0.0) for count in range(1, 5)]
        shown.add_row(
            row.store, result.kind, str(row.clients), *(f"{share:.1%}" for share in shares),
            f"{1 - sum(shares):.1%}", str(result.round_trips_max), time_text(result.p50_ns),
            time_text(result.p99_ns), ", ".join(f"{share:.0%}" for share in row.paper or ()) or "-",
        )  # fmt: skip
    console().print(shown)
    numbers = ("metadata words", "one round trip", "paper")
    shown = table("updates of 64 writers (section 7.9)", "mix", *numbers, right=numbers)
    for row in shared:
        ours = row.result.shares.get(1, 0.0)
        shown.add_row(row.mix, str(row.buffers), f"{ours:.0%}", f"{row.paper[0]:.0%}")
    console().print(shown)


@bench.command("contention")
@click.option("--store", "stores", type=_List(str), default="race,fusee", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--processes", type=_List(int), default="2,4", show_default=True)
@click.option("--keys", type=_List(int), default="1,10000", show_default=True,
              help="Numbers of keys to update, drawn uniformly.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@json_option
def contention_command(
    stores: tuple[str, ...],
    processes: tuple[int, ...],
    keys: tuple[int, ...],
    seconds: float,
    seed: int,
    as_json: bool,
) -> None:
    """Have processes update the same keys, and report how fair that is.

    Exit status 0 only if every process came back.
    """
    numbers = (
        "processes",
        "keys",
        "updates/s",
        "least",
        "most",
        "Jain",
        "retries",
        "p50",
        "longest",
    )
    shown = table("updates of the same keys", "store", *numbers, right=numbers)
    found = []
    for store in stores:
        for count in processes:
            for number in keys:
                one = contention.run(store, count, number, seconds, seed)
                found.append(one)
                shown.add_row(
                    one.store, str(one.processes), f"{one.keys:,}", f"{one.updates_per_s:,.0f}",
                    f"{min(one.shares):,}", f"{max(one.shares):,}", f"{one.fairness:.3f}",
                    f"{one.retries:,}", time_text(one.median_us * 1000),
                    time_text(one.longest_us * 1000),
                )  # fmt: skip
    if as_json:
        print_json([{**dataclasses.asdict(one), "fairness": one.fairness} for one in found])
    else:
        console().print(shown)


FIGURES = ("4a", "4b", "4c", "5", "7", "8b")


@bench.command("cuckoo")
@click.option("--figures", type=_List(str), default=",".join(FIGURES), show_default=True,
              help="Figures of the paper to count; 4c and 7 are one run.")  # fmt: skip
@click.option("--rows", type=click.IntRange(64, 1 << 20), default=100_000, show_default=True,
              help="Rows of the tables for 4a, 4c and 7.")  # fmt: skip
@click.option("--small-rows", type=click.IntRange(64, 1 << 20), default=10_000, show_default=True,
              help="Rows of the tables for 4b and 8b.")  # fmt: skip
@click.option("--tables", type=click.IntRange(1, 100), default=10, show_default=True,
              help="Tables for each mean of 4b.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@json_option
def cuckoo_command(figures: tuple[str, ...], as_json: bool, **given: int) -> None:
    """Count what inserts into `rcuckoo` tables cost, as in the figures of the RCuckoo paper.

    Takes a minute or two. Equal arguments give equal figures on any machine, but for inserts/s.
    """
    if wrong := set(figures) - set(FIGURES):
        raise click.UsageError(f"there is no figure {min(wrong)}; there is {', '.join(FIGURES)}")
    module = simulation("limpet.bench.cuckoo_report")
    with _progress() as progress:
        task = progress.add_task("", total=module.steps(figures, given["tables"]))

        def advance(text: str) -> None:
            progress.update(task, description=text, advance=1, refresh=True)

        found = module.run(figures, advance, **given)
    if as_json:
        print_json(module.as_json(found))
        return
    for shown in module.tables(found):
        console().print(shown)


@bench.command("kills")
@click.option("--store", "stores", type=_List(str), default="rcuckoo", show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--rates", type=_List(float), default="0,50,100,200,500", show_default=True,
              help="Kills a second; 0 is always run, and first.")  # fmt: skip
@click.option("--processes", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True,
              help="How long workers are killed at each rate.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
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
    with _progress() as progress:
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


def _run(options: peers.Options, drivers: list[peers.Driver]) -> peers.Outcome:
    """Run with a progress bar on stderr."""
    progress = _progress()
    there = sum(driver.missing() is None for driver in drivers)
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with progress:
            task = progress.add_task("", total=peers.steps(options, there))

            def advance(text: str) -> None:
                progress.update(task, description=text, advance=1, refresh=True)

            return peers.run(options, drivers, advance)
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress() -> Progress:
    """A bar on stderr, drawn only when it is told to, so that it takes no time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )


def _leave(number: int, frame: FrameType | None) -> None:
    """On SIGTERM, leave through every clean-up."""
    sys.exit(128 + number)
