"""`limpet drill matrix` and `limpet drill check`: kill at every step; judge a history."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Final

import click

from limpet.cli.common import console, json_option, print_json, table
from limpet.fault.check import formats, serializability
from limpet.fault.check.linearizability import check_file
from limpet.fault.inject.interrupt import Interrupted, ended_by_signals
from limpet.fault.matrix import cache_matrix, channel_matrix, encounter
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.crash_matrix import DIMENSIONS, LIMIT, PAST, run, uncovered
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import operations_of
from limpet.stores.registry import CACHES, KINDS

_STEP: Final = re.compile(r"k=(\d+)")
"""The step in a failure of the matrix."""


@click.command()
@click.argument(
    "store", default="race", type=click.Choice([*KINDS, *CACHES, *CHANNELS]), metavar="[KIND]"
)
@click.option("--op", "operations", multiple=True, metavar="OPERATION",
              help="Only this operation; may be repeated.")  # fmt: skip
@click.option("--only", "dimensions", multiple=True, type=click.Choice(DIMENSIONS),
              help="Only this dimension; may be repeated.")  # fmt: skip
@click.option("--step", type=click.IntRange(1), help="Only this step: repeats a failure.")
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
    dimensions: tuple[str, ...],
    step: int | None,
    limit: int,
    every: bool,
    failures: int | None,
    as_json: bool,
) -> None:
    """Kill each operation of a KIND at its every step, and verify the survivors' view.

    KIND is one of stores, of channels, or cache; race if none is named. The dimensions: the victim
    is killed; it is killed, and then the client that recovers it at each of its steps; it is
    stopped, and woken or killed; memory nodes are lost; and a new client of its slot runs every
    operation.
    (Of channels: the first and the last.) The table has the numbers of steps, and of those taken:
    of the operation, and of the client that met the victims and was killed next. Exit status 0 only
    if every check held.

    With --encounters, of a KIND with replicas, two clients work on one key; one is stopped at each
    of its steps, the other is killed at each of its own, NODES memory nodes are lost, and the first
    goes on.
    """
    if failures and (operations or dimensions or step or store not in encounter.kinds()):
        raise click.UsageError(
            "--encounters takes no --op, --only and --step, and a store with replicas: "
            f"{', '.join(encounter.kinds())}"
        )
    of_channels = store in CHANNELS
    ran: Callable[..., Iterator[MatrixResult]] = run
    known: list[str] = []
    if of_channels:
        known, ran = channel_matrix.calls_of(store), channel_matrix.run
    elif store in CACHES:
        known, ran = list(cache_matrix.CACHE_OPERATIONS), cache_matrix.run
    else:
        known = list(operations_of(store))
    for name in operations:
        if name not in known:
            raise click.BadParameter(f"{store} has no operation {name!r}, but {'; '.join(known)}")
    steps = None if every else limit
    results_of = (
        encounter.run(store, failures, steps)
        if failures
        else ran(store, list(operations) or None, steps, dimensions or None, step)
    )
    out = console()
    shown = table(
        f"crash matrix of {store}",
        "operation", "dimension", "steps taken", "next one's", "runs", "verdict",
        right=("steps taken", "next one's", "runs"),
    )  # fmt: skip
    results: list[MatrixResult] = []
    try:
        with ended_by_signals() as check:
            for result in results_of:
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
    whole = not (failures or operations or dimensions or step or of_channels)
    missed = sorted(uncovered(results)) if whole else []
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
                if (found := _STEP.match(failure)) and one.operation != PAST:
                    click.echo(
                        f'    limpet drill matrix {store} --op "{one.operation}" '
                        f'--only "{one.dimension}" --step {found[1]}'
                    )
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
@click.option("--format", "form", type=click.Choice(formats.FORMATS),
              help="FILE is a history of another program; it may have cas and append.")  # fmt: skip
@click.option(
    "--initial", default="nil", help="With --format: the first value of each key, as EDN."
)
@json_option
def check(
    file: str, budget: int | None, transactions: bool, form: str | None, initial: str, as_json: bool
) -> None:
    """Judge the history in FILE (JSON Lines): is it linearizable?

    Exit status 0 only for "ok"; "unknown" means that the budget did not suffice. A file without
    an operation proves nothing: exit status 1.
    """
    if transactions:
        raise SystemExit(_check_transactions(file, as_json))
    if form is None:
        report = check_file(file, budget=budget)
    else:
        report = formats.check_file(file, form, initial=initial, budget=budget)
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
