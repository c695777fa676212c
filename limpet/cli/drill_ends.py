"""`limpet drill ends`, `forks`, `names`: processes that end, fork, or meet others, at each step."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from limpet.cli.common import console, json_option, print_json, table
from limpet.cli.drill_run import exit_status
from limpet.fault.drill import forks
from limpet.fault.drill import names as drill_names
from limpet.fault.drill.ends import SHARE, WAYS, Ends, Result
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
    share = 0 if every else SHARE
    _drill(
        "clients that end in an operation", subjects or SUBJECTS, ways or tuple(WAYS),
        lambda subject, way: Ends(subject, _url(), share).run(way), as_json,
    )  # fmt: skip


@click.command("forks")
@click.argument("uses", nargs=-1, type=click.Choice(list(forks.USES)), metavar="[USE]...")
@click.option("--way", "ways", multiple=True, type=click.Choice(forks.WAYS),
              help="Only this one; may be repeated.  [default: all]")  # fmt: skip
@json_option
def fork(uses: tuple[str, ...], ways: tuple[str, ...], as_json: bool) -> None:
    """Fork processes while a lock, a computation, a view or the like is theirs.

    A USE is of a store, channel or cache; all of them if none is named. Exit status 0 only if it
    stays its owner's, whether the child ends, unwinds, goes on or uses it, too.
    """
    _drill(
        "owners that fork", uses or tuple(forks.USES), ways or forks.WAYS,
        lambda use, way: forks.Forks(_url()).run(use, way), as_json,
    )  # fmt: skip


def _url() -> str:
    return f"shm://drill-{os.getpid()}"


def _drill(
    title: str,
    subjects: Iterable[str],
    ways: Sequence[str],
    run: Callable[[str, str], Result],
    as_json: bool,
) -> None:
    """Run each way with each subject; show the results, and exit with status 1 if one failed."""
    shown = table(title, "subject", "way", "runs", "verdict", right=("runs",))
    results = []
    with exit_status(), ended_by_signals() as check:
        for subject in subjects:
            for way in ways:
                check()
                result = run(subject, way)
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
