"""`limpet drill matrix` and `limpet drill check`: kill at every step; judge a history."""

from __future__ import annotations

import dataclasses

import click

from limpet.cli.common import console, json_option, print_json, table
from limpet.fault import encounter, serializability
from limpet.fault.findings import Result
from limpet.fault.interrupt import Interrupted, ended_by_signals
from limpet.fault.linearizability import check_file
from limpet.fault.matrix import LIMIT, run, uncovered
from limpet.fault.operations import OPERATIONS


@click.command()
@click.argument("store", default="race")
@click.option("--op", "operations", multiple=True, type=click.Choice(list(OPERATIONS)),
              help="Only this operation; may be repeated.")  # fmt: skip
@click.option("--limit", type=click.IntRange(2), default=LIMIT, show_default=True,
              help="Runs of an operation in one dimension, about.")  # fmt: skip
@click.option("--every", is_flag=True, help="No limit: every step in every dimension.")
@click.option(
    "--encounters",
    "failures",
    type=click.IntRange(1, 3),
    metavar="NODES",
    help="Instead: one client is stopped, another killed, and so many nodes are lost.",
)
@json_option
def matrix(
    store: str,
    operations: tuple[str, ...],
    limit: int,
    every: bool,
    failures: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Kill each operation of a STORE at its every step, and verify what survivors see.

    The dimensions: it is killed; killed, and then whoever recovers it at each step of theirs;
    stopped, and woken or killed; and memory nodes are lost. The table says how many steps there are
    and how many were taken: those of the operation, and those of who met the victims and was killed
    next. STORE is race if none is named. Exit status 0 only if everything held.

    With --encounters, of a STORE with replicas, two clients work on one key; one is stopped at each
    of its steps, the other is killed at each of its own, NODES memory nodes are lost, and the first
    goes on.
    """
    if failures and (operations or store not in encounter.kinds()):
        raise click.UsageError(
            f"--encounters takes no --op, and a store with replicas: {', '.join(encounter.kinds())}"
        )
    most = None if every else limit
    chosen = list(operations) or None
    runs = encounter.run(store, failures, most) if failures else run(store, chosen, most)
    out = console()
    shown = table(
        f"crash matrix of {store}",
        "operation", "dimension", "steps taken", "next one's", "runs", "verdict",
        right=("steps taken", "next one's", "runs"),
    )  # fmt: skip
    results: list[Result] = []
    try:
        with ended_by_signals() as check:
            for result in runs:
                check()
                results.append(result)
                if not as_json:
                    words = f"{result.operation}, {result.dimension}: {result.verdict}"
                    click.echo(words, err=True)
    except Interrupted as error:
        click.echo(f"{error}: the victims have ended and the pool is removed", err=True)
        raise SystemExit(128 + error.signal) from error
    for one in results:
        shown.add_row(
            one.operation, one.dimension, f"{one.tried} of {one.steps}",
            f"{one.next_tried} of {one.next_steps}" if one.next_steps else "",
            str(one.runs), one.verdict,
        )  # fmt: skip
    missed = [] if operations or failures else sorted(uncovered(results))
    if as_json:
        print_json(
            {
                "results": [
                    {**dataclasses.asdict(one), "seen": sorted(one.seen), "verdict": one.verdict}
                    for one in results
                ],
                "every_step": all(one.complete for one in results),
                "crash_points_not_covered": missed,
            }
        )
    else:
        out.print(shown)
        for one in results:
            for failure in one.failures:
                click.echo(f"{one.operation}, {one.dimension}: {failure}")
            if not one.runs and not one.failures:
                click.echo(f"{one.operation}, {one.dimension}: nothing was run")
        partial = sum(not one.complete for one in results)
        if partial:
            click.echo(
                f"{partial} of {len(results)} rows are of some of the steps only; "
                "--every takes them all"
            )
        if missed:
            click.echo(f"crash points that no run met: {', '.join(missed)}")
    if missed or any(one.verdict != "ok" for one in results):
        raise SystemExit(1)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--budget", type=click.IntRange(1), help="Configurations tried for one key, at most.")
@click.option("--transactions", is_flag=True,
              help="FILE is a history of transactions: is it strictly serializable?")  # fmt: skip
@json_option
def check(file: str, budget: int | None, transactions: bool, as_json: bool) -> None:
    """Judge the history in FILE (JSON Lines): is it linearizable?

    Exit status 0 only for "ok"; "unknown" means that the budget did not suffice. A file without
    an operation proves nothing: exit status 1.
    """
    if transactions:
        raise SystemExit(_check_transactions(file, as_json))
    report = check_file(file, budget=budget)
    if not report.operations:
        raise click.ClickException(f"{file} has no operation in it: there is nothing to judge")
    if as_json:
        print_json(report.as_dict())
    else:
        unknown = sum(key.unknown for key in report.keys)
        click.echo(
            f"{report.verdict.value}: {report.operations} operations on {len(report.keys)} keys, "
            f"{unknown} of unknown outcome"
        )
        for key in report.bad():
            click.echo(f"{key.verdict.value}: {key.detail}")
    raise SystemExit(report.exit_status)


def _check_transactions(file: str, as_json: bool) -> int:
    report = serializability.check_file(file)
    if not report.transactions:
        raise click.ClickException(f"{file} has no transaction in it: there is nothing to judge")
    if as_json:
        print_json(report.as_dict())
    else:
        click.echo(
            f"{report.verdict.value}: {report.transactions} transactions, {report.aborted} "
            f"aborted, {report.unknown} of unknown outcome, {report.happened} of which happened"
        )
        if not report.ok:
            click.echo(report.detail)
    return report.exit_status
