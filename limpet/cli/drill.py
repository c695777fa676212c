"""`limpet drill`: fault tests. `explore` and `latency` are here; other modules add to the group."""

from __future__ import annotations

import dataclasses
import os
import secrets
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from limpet.cli.bank import bank
from limpet.cli.cache_drill import cache_drill
from limpet.cli.common import (
    console,
    json_option,
    nodes_option,
    parameter_option,
    print_json,
    simulation,
    table,
    time_text,
)
from limpet.cli.damage import damage
from limpet.cli.drill_cuts import cut
from limpet.cli.drill_ends import ends, fork, names
from limpet.cli.drill_run import StoreOrCommand, exit_status, run
from limpet.cli.full import full
from limpet.cli.matrix import check, matrix
from limpet.cli.standing import beside, containers_, looks, throttle
from limpet.cli.timed import timed_options
from limpet.fault.drill import recovery_time, soak
from limpet.fault.explore.schedule import STRATEGIES, parse_schedule, schedule_text
from limpet.fault.explore.sim_latency import model_lines, model_with
from limpet.fault.explore.sim_program import VALUE_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.fault.explore.explorer import Exploration, ExplorerReport, Failure, Tally


@click.group(cls=StoreOrCommand, subcommand_metavar="STORE|COMMAND [ARGS]...")
def drill() -> None:
    """Prove that a store keeps its promises: explore schedules, kill, stop, check.

    `limpet drill STORE [OPTIONS]` kills and stops real processes at random and judges their
    results; `limpet drill run --help` has its options.
    """


for command in (
    run, cut, ends, fork, names, matrix, check, bank, cache_drill, full, damage, throttle, beside,
    looks, containers_,
):  # fmt: skip
    drill.add_command(command)


@drill.command()
@click.argument("store", default="fusee")
@click.option("--updates", type=click.IntRange(1), default=1000, show_default=True,
              help="Updates of each client before it dies.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True,
              help="Clients that die; medians are reported.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of every random choice.")  # fmt: skip
@json_option
def recovery(store: str, updates: int, rounds: int, seed: int, as_json: bool) -> None:
    """Time the recovery of clients that die in an update, step by step. STORE is fusee by default.

    As table 1 of the FUSEE paper, whose figures are beside. Exit status 0 only if no memory leaked.
    """
    found = recovery_time.run(store, updates, rounds, seed)
    if as_json:
        print_json({**dataclasses.asdict(found), "total_ms": found.total_ms})
    else:
        numbers = ("ms", "share", "paper ms")
        shown = table(f"recovery after {updates} updates, {store}", "step", *numbers, right=numbers)
        paper = recovery_time.PAPER_MS
        for step, took in found.steps_ms.items():
            share = f"{took / found.total_ms:.1%}"
            shown.add_row(step, f"{took:.3f}", share, str(paper.get(step, "-")))
        shown.add_row("all", f"{found.total_ms:.3f}", "100.0%", f"{sum(paper.values()):.1f}")
        console().print(shown)
        click.echo(
            f"{found.rounds} clients died, {found.settled} objects of their journals were freed, "
            f"{found.leaked} bytes leaked"
        )
    if found.leaked:
        raise SystemExit(1)


@drill.command()
@click.argument("store", default="race")
@click.option("--clients", type=click.IntRange(1, 16), default=3, show_default=True,
              help="Simulated clients.")  # fmt: skip
@click.option("--ops", type=click.IntRange(1, 64), default=2, show_default=True,
              help="Operations of each client.")  # fmt: skip
@click.option("--schedules", type=click.IntRange(1), default=1000, show_default=True,
              help="Runs; exhaustive: runs for each program, at most.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Repeats an exploration; printed if drawn.")
@click.option("--strategy", type=click.Choice(STRATEGIES), default="mixed", show_default=True,
              help="How schedules are made up.")  # fmt: skip
@click.option("--crashes", type=click.IntRange(0, 64), default=1, show_default=True,
              help="Clients that die in a run, at most.")  # fmt: skip
@click.option("--stalls", type=click.IntRange(0, 64), default=1, show_default=True,
              help="Clients that stand still in a run, at most.")  # fmt: skip
@click.option("--node-failures", type=click.IntRange(0, 16), default=0, show_default=True,
              help="Memory nodes that fail in a run, at most.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Nodes that fail are given new memory.")
@click.option("--add-nodes", is_flag=True, help="Nodes are added to the pool in each run.")
@nodes_option
@parameter_option
@click.option("--transactions", is_flag=True,
              help="Half of the operations are transactions (rtx-sherman, rtx-race).")  # fmt: skip
@click.option("--names", is_flag=True,
              help="The operations make, drop, rename and look at stores.")  # fmt: skip
@click.option("--bound", type=click.IntRange(0, 8), default=2, show_default=True,
              help="Preemptions of an exhaustive run, at most.")  # fmt: skip
@click.option("--programs", type=click.IntRange(1), default=1, show_default=True,
              help="Programs that the exhaustive strategy draws.")  # fmt: skip
@click.option("--program", default="", help="What the clients do, such as 'ua ga|da|ic'.")
@click.option("--schedule", help="Run --program once, with these departures from the default.")
@click.option("--value-size", type=click.IntRange(16, VALUE_SIZE), default=VALUE_SIZE,
              show_default=True,
              help="Of each value; memory is scarce when it is large.")  # fmt: skip
@click.option("--fence", type=click.Choice(["kill", "wait"]), default="kill", show_default=True,
              help="The pool's policy towards clients that stand still.")  # fmt: skip
@click.option("--incoherent", is_flag=True, help="Each client has a cache that must be flushed.")
@click.option(
    "--durable",
    is_flag=True,
    help="The pool is durable; the power is cut in each run, and the pool opened again.",
)
@click.option("--scarce", is_flag=True, help="All free memory is in blocks of clients.")
@click.option("--remote", is_flag=True, help="Clients look at control words now and then only.")
@click.option("--processes", type=click.IntRange(1), default=len(os.sched_getaffinity(0)),
              help="Processes that share the runs.  [default: one for each CPU]")  # fmt: skip
@click.option("--trace", is_flag=True, help="With --schedule: print every step.")
@json_option
def explore(
    schedule: str | None, seed: int | None, incoherent: bool, trace: bool, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Run a STORE's code under many schedules of a few simulated clients, with crashes.

    Each run is a small program with another order of its memory steps, in which clients die and
    stall. Afterwards the history must be linearizable, every invariant hold and no memory be
    leaked. A failure is shrunk, and printed with the command that repeats it; the exit status is
    then 1.
    STORE is race if none is named. It may be a channel: queue, deque, topic, semaphore, rwlock,
    condition, or jobs, which is a queue with acks.
    """
    if given["program"]:
        given["clients"] = given["program"].count("|") + 1
    parameters = simulation("limpet.fault.explore.explorer").Exploration(
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        coherent=not incoherent,
        **given,
    )
    if schedule is not None:
        _replay(parameters, schedule, trace, as_json)
        return
    out = Console(stderr=True) if as_json else console()
    report = _with_progress(parameters, out)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        _print_report(out, report)
    if not report.ok:
        raise SystemExit(1)


@drill.command("soak")
@click.option("--minutes", type=click.FloatRange(0), default=60.0, show_default=True,
              help="For so long another command begins.")  # fmt: skip
@click.option("--tests", is_flag=True, help="Also the tests; call it in a checkout.")
@click.argument("demo", nargs=-1, metavar="[-- DEMO OPTIONS]...")
def soak_(minutes: float, tests: bool, demo: tuple[str, ...]) -> None:
    """Run the demo and every drill, of every subject, by turns, until one of them fails.

    A command that has begun runs to its end, unless a signal ends it; the first takes a minute.
    Exit status 0 only if all of them held.
    """
    with exit_status():
        soak.run(minutes, demo, tests, lambda name: click.echo(f"--- {name}"))
    click.echo(f"soak: {minutes:g} minutes without a failure")


@drill.command()
@click.argument("store", default="race")
@click.option("--clients", type=click.IntRange(1, 512), default=64, show_default=True,
              help="Simulated clients.")  # fmt: skip
@click.option("--ops", type=click.IntRange(1), default=200, show_default=True,
              help="Operations of each client.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1), default=1000, show_default=True,
              help="Keys that are there, and are worked on.")  # fmt: skip
@click.option("--value-size", type=click.IntRange(8, 8192), default=64, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@click.option("--theta", type=click.FloatRange(0, 10), default=0.99, show_default=True,
              help="Skew of the keys.")  # fmt: skip
@click.option("--write-share", type=click.FloatRange(0, 1), default=0.5, show_default=True,
              help="Which share of the operations are updates.")  # fmt: skip
@click.option("--remote", is_flag=True,
              help="Looks at control words are messages; clients look now and then.")  # fmt: skip
@timed_options
@json_option
def latency(profile: str, changes: Mapping[str, float], as_json: bool, **given: Any) -> None:
    """Run many clients of a STORE in virtual time, on the clock of a latency model.

    Equal arguments give equal results, on any machine. STORE is race if none is named.
    """
    timed = simulation("limpet.fault.explore.sim_time")
    report = timed.run_timed(timed.Workload(**given), model_with(profile, changes))
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    numbers = (
        "count",
        "mean",
        "p50",
        "p90",
        "p99",
        "max",
        "round trips",
        "exchanges",
        "read B",
        "written B",
    )
    found = table(
        f"{report.workload.store}, {report.workload.clients} clients, {profile}: "
        f"{report.throughput:,.0f} operations a virtual second",
        "operation", *numbers, right=numbers,
    )  # fmt: skip
    for kind in report.kinds:
        times = (kind.mean_ns, kind.p50_ns, kind.p90_ns, kind.p99_ns, kind.max_ns)
        found.add_row(
            kind.kind, f"{kind.count:,}", *(time_text(time) for time in times),
            f"{kind.round_trips:.2f}", f"{kind.exchanges:.2f}", f"{kind.bytes_read:.0f}",
            f"{kind.bytes_written:.0f}",
        )  # fmt: skip
    found.caption = "\n".join(model_lines(report.model))
    console().print(found)
    console().print(f"{report.workload}", soft_wrap=True)


def _replay(parameters: Exploration, schedule: str, trace: bool, as_json: bool) -> None:
    if not parameters.program:
        raise click.UsageError("--schedule needs --program, what the clients do")
    run, lines = simulation("limpet.fault.explore.explorer").explore_one(
        parameters, parse_schedule(schedule)
    )
    taken = schedule_text(run.schedule)
    if as_json:
        print_json(
            {"failure": run.failure, "steps": run.steps, "schedule": taken, "digest": run.digest(),
             "history": [str(record) for record in run.history], "trace": lines}
        )  # fmt: skip
    else:
        for line in lines if trace else ():
            click.echo(line)
        for record in run.history:
            click.echo(str(record))
        click.echo(f"{run.steps} steps, departures: {taken or 'none'}, digest {run.digest()}")
        click.echo(run.failure or "everything held")
    if run.failure:
        raise SystemExit(1)


def _with_progress(parameters: Exploration, out: Console) -> ExplorerReport:
    exhaustive = parameters.strategy == "exhaustive"
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=out, transient=True, disable=not out.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("runs", total=None if exhaustive else parameters.schedules)

        def show(tally: Tally) -> None:
            progress.update(task, completed=tally.schedules)

        return simulation("limpet.fault.explore.explorer").explore(parameters, show)  # type: ignore[no-any-return]


def _print_report(out: Console, report: ExplorerReport) -> None:
    parameters = report.parameters
    columns = (
        "runs",
        "steps",
        "crashes",
        "stalls",
        "nodes lost",
        "replaced",
        "rings added",
        "power cuts",
        "runs/s",
        "failures",
    )
    found = table(
        f"{parameters.store}: {parameters.clients} clients, {parameters.ops} operations each, "
        f"{parameters.strategy}, seed {parameters.seed}",
        *columns, right=columns,
    )  # fmt: skip
    found.add_row(
        f"{report.schedules:,}", f"{report.steps:,}", f"{report.crashes:,}", f"{report.stalls:,}",
        f"{report.node_failures:,}", f"{report.replaced:,}", f"{report.added:,}",
        f"{report.power_cuts:,}", f"{report.schedules / max(report.seconds, 1e-9):,.0f}",
        str(len(report.failures)),
    )  # fmt: skip
    out.print(found)
    if report.unfinished:
        click.echo(
            f"{report.unfinished} of {parameters.programs} programs have more schedules than "
            f"--schedules {parameters.schedules}: the others were not run"
        )
    for failure in report.failures:
        _print_failure(failure)


def _print_failure(failure: Failure) -> None:
    if failure.repeatable:
        click.echo(f"\nrun {failure.number} failed, and so does, with digest {failure.digest},")
    else:
        click.echo(f"\nrun {failure.number} failed, but NOT, with digest {failure.digest},")
    click.echo(f"    {failure.command}")
    click.echo(failure.what)
