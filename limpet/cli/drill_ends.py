"""`limpet drill ends`: processes that stop being clients at each step of an operation."""

from __future__ import annotations

import dataclasses
import os

import click

from limpet.cli.common import console, json_option, print_json, table
from limpet.cli.drill_run import exit_status
from limpet.fault.drill.ends import SHARE, WAYS, Ends
from limpet.fault.inject.interrupt import ended_by_signals
from limpet.fault.matrix.subjects import SUBJECTS


@click.command("ends")
@click.argument("subjects", nargs=-1, type=click.Choice(sorted(SUBJECTS)), metavar="[SUBJECT]...")
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)),
              help="Only this one; may be repeated.  [default: all]")  # fmt: skip
@click.option("--every", is_flag=True, help="Every step, not some of them.")
@json_option
def ends(subjects: tuple[str, ...], ways: tuple[str, ...], every: bool, as_json: bool) -> None:
    """End processes in the middle of operations: by exec, os._exit, with threads at work.

    A SUBJECT is a kind of store, or a channel; all of them if none is named. Exit status 0 only if
    other clients go on at once each time, no ended client is left in the pool, no memory is leaked,
    and no process is killed that is no client any more.
    """
    shown = table("clients that end in an operation", "subject", "way", "runs", "verdict",
                  right=("runs",))  # fmt: skip
    results = []
    with exit_status(), ended_by_signals() as check:
        for subject in subjects or SUBJECTS:
            drill = Ends(subject, f"shm://drill-{os.getpid()}", 0 if every else SHARE)
            for way in ways or WAYS:
                check()
                result = drill.run(way)
                results.append(result)
                shown.add_row(subject, way, str(result.runs), "held" if result.ok else "failed")
    if as_json:
        print_json([{**dataclasses.asdict(result), "ok": result.ok} for result in results])
    else:
        console().print(shown)
        for result in results:
            if not result.ok:
                click.echo(f"{result.subject}, {result.way}: {result.failure}")
    if not all(result.ok for result in results):
        raise SystemExit(1)
