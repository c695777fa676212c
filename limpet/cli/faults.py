"""The commands of faults (fault/drill/engine.py): their arguments, and their results."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import click
from rich.table import Table

from limpet.cli.common import console, json_option, print_json, table
from limpet.cli.drill_run import exit_status
from limpet.fault.drill.engine import Result
from limpet.fault.inject.interrupt import ended_by_signals


def fault_command(
    name: str,
    subjects: Collection[str],
    ways: Collection[str],
    word: str = "role",
    subject: str = "SUBJECT",
    every: str = "Every step, not some of them.",
) -> Callable[[Callable[..., None]], click.Command]:
    """A command of a fault: its subjects, all if none is named; --WORD, likewise; --every; --json.

    It is called with `subjects`, `ways`, `every` and `as_json`.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            given["subjects"] = given["subjects"] or tuple(subjects)
            given["ways"] = given["ways"] or tuple(ways)
            function(**given)

        shown: Any = json_option(command)
        if every:
            shown = click.option("--every", is_flag=True, help=every)(shown)
        shown = click.option(
            f"--{word}", "ways", multiple=True, type=click.Choice(list(ways)),
            help="Only this one; may be repeated.  [default: all]",
        )(shown)  # fmt: skip
        return click.command(name)(
            click.argument(
                "subjects", nargs=-1, type=click.Choice(list(subjects)), metavar=f"[{subject}]..."
            )(shown)
        )

    return decorate


def drill_url() -> str:
    """Where the drills of this process make their pools."""
    return f"shm://drill-{os.getpid()}"


def report(
    as_json: bool, data: Any, shown: Table, failures: Iterable[str], held: bool | None = None
) -> None:
    """Show the result of a drill: JSON, or the table and the failures; exit status 1 if there are
    any, or it has not `held`."""
    broken = list(failures)
    if as_json:
        print_json(data)
    else:
        console().print(shown)
        for failure in broken:
            click.echo(failure)
    if broken if held is None else not held:
        raise SystemExit(1)


def run_faults(title: str, runs: Iterable[Callable[[], Result]], as_json: bool) -> None:
    """Run faults, and show the results; exit status 1 unless all held."""
    results: list[Result] = []
    with exit_status(), ended_by_signals() as check:
        for run in runs:
            check()
            results.append(run())
    if not results:
        raise click.UsageError("there is nothing of this kind to do with these subjects")
    numbers = tuple(results[0].counts)
    shown = table(title, *results[0].of, *numbers, "verdict", right=numbers)
    for one in results:
        counts = map(str, one.counts.values())
        shown.add_row(*one.of.values(), *counts, "held" if one.ok else "failed")
    report(
        as_json,
        [{**one.of, **one.counts, "failure": one.failure, "ok": one.ok} for one in results],
        shown,
        (f"{', '.join(one.of.values())}: {one.failure}" for one in results if not one.ok),
    )
