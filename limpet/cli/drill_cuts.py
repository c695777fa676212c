"""`limpet drill cuts`: signal handlers that raise, in every operation of limpet."""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import Any

import click
from click.testing import CliRunner

from limpet.cli.common import json_option, table
from limpet.cli.faults import report
from limpet.cli.pools import inspect, ls
from limpet.cli.values import get, put
from limpet.fault.drill import cuts
from limpet.fault.drill.cut_works import SUBJECTS, Work, Works


def command_works(pool: Any, draw: random.Random) -> Works:
    """Shows a pool on the command line, and puts pairs into it."""
    pool.store("race", name="default", capacity=64)

    def command(called: click.Command, *arguments: str) -> Work:
        return lambda: CliRunner().invoke(called, arguments, catch_exceptions=False)

    return {
        "ls": command(ls),
        "inspect": command(inspect, pool.url),
        "inspect --json": command(inspect, pool.url, "--json"),
        "put": command(put, pool.url, "k", "v"),
        "get": command(get, pool.url, "k"),
    }


SUBJECTS["commands"] = command_works


@click.command("cuts")
@click.argument("subjects", nargs=-1, metavar="[SUBJECT]...")
@click.option("--seconds", type=click.FloatRange(0), default=cuts.CutParameters.seconds,
              show_default=True, help="Of storm, for each subject.")  # fmt: skip
@click.option("--verbs", "verbs_max", type=click.IntRange(0),
              default=cuts.CutParameters.verbs_max, show_default=True,
              help="Sides of verbs, and calls, that a work is cut at, at most.")  # fmt: skip
@click.option("--stride", type=click.IntRange(1), default=1, show_default=True,
              help="Cut only at every so many of them.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of every random choice.")  # fmt: skip
@json_option
def cut(subjects: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Let a signal handler raise, as Ctrl-C does, at every verb, every call, and at random times.

    SUBJECTs are store kinds, `cache`, `computations`, `channels`, `transactions`, `pools` and
    `commands`; all if none is named. Exit status 0 only if each handle works afterwards, no client
    is pinned, and no memory, lock or descriptor is left behind.
    """
    unknown = sorted(set(subjects) - set(SUBJECTS))
    if unknown:
        raise click.UsageError(f"no subject {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    streams = sys.stdin, sys.stdout, sys.stderr
    reports = [cuts.drill(cuts.CutParameters(subject, **given)) for subject in subjects or SUBJECTS]
    # click's runner of commands is cut off, too, while it has others in their places
    sys.stdin, sys.stdout, sys.stderr = streams
    columns = (
        "works", "cut at verbs", "cut at calls", "cut in storms", "not cut", "seconds", "failures"
    )  # fmt: skip
    shown = table("signal handlers that raise", "subject", *columns, right=columns)
    for one in reports:
        shown.add_row(
            one.subject, str(one.works), f"{one.at_verbs:,}", f"{one.at_calls:,}",
            f"{one.in_storm:,}", f"{one.uncut:,}", f"{one.seconds:.1f}", str(len(one.failures)),
        )  # fmt: skip
    report(
        as_json,
        [dataclasses.asdict(one) for one in reports],
        shown,
        (f"{one.subject}: {failure}" for one in reports for failure in one.failures[:20]),
    )
