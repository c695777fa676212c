"""`limpet drill ends` and `names`: processes that end, or meet another, at each step of a call."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

import click

from limpet.cli.common import console, json_option, print_json, table
from limpet.cli.drill_run import exit_status
from limpet.fault.drill import names as drill_names
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
    _report(shown, results, as_json)


@click.command("names")
@click.argument("acts", nargs=-1, type=click.Choice(list(drill_names.ACTS)), metavar="[CALL]...")
@click.option("--backend", "schemes", multiple=True, type=click.Choice(list(drill_names.PLACES)),
              help="Only this one; may be repeated.  [default: all]")  # fmt: skip
@click.option("--on", "url", help="A place of your own, where nothing is: the URL of any backend.")
@click.option("--way", "ways", multiple=True, type=click.Choice(drill_names.WAYS),
              help="Only this one; may be repeated.  [default: all]")  # fmt: skip
@click.option("--every", is_flag=True, help="Every event, not some of them.")
@json_option
def names(
    acts: tuple[str, ...], schemes: tuple[str, ...], url: str | None, ways: tuple[str, ...],
    every: bool, as_json: bool,
) -> None:  # fmt: skip
    """Let another process act on the same name at each event of a call, or kill the caller there.

    A CALL is create, open, "open or create", destroy or replace; all of them if none is named. Exit
    status 0 only if each call ends, no pool loses a segment to a call that means another one, no
    segment is left without a pool, and the name can be used afterwards.
    """
    shown = table("names", "backend", "call", "way", "runs", "verdict", right=("runs",))
    results = []
    given = {"--on": lambda: contextlib.nullcontext(url)} if url else drill_names.PLACES
    with exit_status(), ended_by_signals() as check:
        for place in [given[scheme] for scheme in schemes or given]:
            with place() as where:
                drill = drill_names.Names(where, 0 if every else drill_names.SHARE)
                for act in acts or drill_names.ACTS:
                    for way in ways or drill_names.WAYS:
                        check()
                        result = drill.run(act, way)
                        results.append(result)
                        verdict = "held" if result.ok else "failed"
                        shown.add_row(result.backend, act, way, str(result.runs), verdict)
    _report(shown, results, as_json)


def _report(shown: Any, results: list[Any], as_json: bool) -> None:
    if as_json:
        print_json([{**dataclasses.asdict(result), "ok": result.ok} for result in results])
    else:
        console().print(shown)
        for result in results:
            if not result.ok:
                click.echo(f"{result.subject}, {result.way}: {result.failure}")
    if not all(result.ok for result in results):
        raise SystemExit(1)
