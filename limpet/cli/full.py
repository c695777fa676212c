"""`limpet drill full`: memory that is full at each allocation; fault/drill/full_memory.py."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from limpet.cli.common import console, json_option, table
from limpet.cli.drill_run import exit_status
from limpet.cli.faults import report
from limpet.fault.drill.full_memory import Result, kinds, require_small, run
from limpet.fault.inject.interrupt import ended_by_signals
from limpet.fault.matrix.operations import Broken


@click.command()
@click.argument("names", metavar="[KIND]...", nargs=-1)
@click.option("--every", type=click.IntRange(1), default=1, show_default=True,
              help="Only every so many requests for pages.")  # fmt: skip
@click.option("--on", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A small file system of its own (a tmpfs) to fill up for real.")  # fmt: skip
@json_option
def full(names: tuple[str, ...], every: int, folder: Path | None, as_json: bool) -> None:
    """Refuse each request for pages in turn, as a full memory does, then grant them again.

    KINDs are those of stores, and "channels"; all of them if none is named. In each run, a write
    that finds no memory must raise StoreFull and change nothing. Meanwhile every key must be
    readable, for clients that have the pool open and for one that opens it only then. Afterwards
    the store must be as if there had always been room. Exit status 0 only if all of this held.
    """
    if folder is not None:
        require_small(folder)
    url = f"file://{folder.resolve()}/pool" if folder else f"shm://full-{secrets.token_hex(6)}"
    results: list[Result] = []
    failures: list[str] = []
    out = console()
    with (
        exit_status(),
        ended_by_signals() as check,
        Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            console=out, transient=True, disable=as_json or not out.is_terminal,
        ) as progress,
    ):  # fmt: skip
        for kind in names or kinds():
            task = progress.add_task(kind, total=None)

            def show(at: int, requests: int, task: int = task) -> None:
                check()
                progress.update(task, completed=at, total=requests)  # type: ignore[arg-type]

            try:
                results.append(run(kind, url, folder=folder, step=every, progress=show))
            except Broken as error:
                failures.append(str(error))
            progress.remove_task(task)
    numbers = ("runs", "writes refused", "values read meanwhile")
    where = f"{folder} filled up" if folder else "pages refused"
    shown = table(f"memory full at each request, {where}", "kind", *numbers, right=numbers)
    for result in results:
        shown.add_row(result.kind, f"{result.runs:,}", f"{result.refused:,}", f"{result.reads:,}")
    data = {"results": [dataclasses.asdict(one) for one in results], "failures": failures}
    report(as_json, data, shown, (f"FAILED  {failure}" for failure in failures))
    if not as_json:
        click.echo("Everything held.")
