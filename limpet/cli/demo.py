"""`limpet demo`: runs fault/drill/demo.py, shows it, and reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from limpet.cli.common import PoolUrl, console, json_option, print_json, size_text
from limpet.cli.drill_run import run_parameters, shown
from limpet.cli.drill_view import print_clients, print_verdict, run_dict
from limpet.cli.live_view import latencies_ns, operations
from limpet.fault.drill.demo import DemoParameters, DemoReport, run

KINDS: Final = ("get", "put")
"""Names of reading and writing operations in the output."""


@click.command()
@click.option("--store", default="race", show_default=True,
              help="Kind of the store; its keys and nodes are made to fit the files.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1, 256), default=4, show_default=True,
              help="Worker processes.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
              help="How long the workers work.")  # fmt: skip
@click.option("--kill-rate", type=click.FloatRange(0), default=2.0, show_default=True,
              help="Kills a second.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Repeats a run's choices; printed if drawn.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Load the files of this directory instead of the standard library.")  # fmt: skip
@click.option("--url", type=PoolUrl(), help="Where to make the pool.  [default: shm://demo-PID]")
@json_option
def demo(as_json: bool, **given: Any) -> None:
    """Kill workers at random while they rewrite the standard library, then verify everything.

    The demo fills a pool of three nodes with every file of Python's standard library; it names
    files that are too large for the kind of the store. Workers read and rewrite the files, while
    the demo kills and replaces a random worker again and again. Afterwards each read must have been
    whole and current, no key lost, every invariant intact and no byte leaked; only then is the exit
    status 0. The pool is removed in the end, also by Ctrl-C.
    """
    given = {key: value for key, value in given.items() if value is not None}
    parameters = DemoParameters(**run_parameters({"seed": None, "url": None, **given}, "demo"))
    with shown(parameters, as_json, KINDS) as view:
        report = run(parameters, view)
    if as_json:
        print_json(to_dict(report))
    else:
        print_summary(console(), report)
    if not report.ok:
        raise SystemExit(1)


def print_summary(out: Console, report: DemoReport) -> None:
    """Print the counts of the run and the verdict on each check."""
    seconds, verdict = report.seconds, report.verdict
    print_clients(out, report, KINDS)
    lines = [
        f"{report.files} files, {size_text(report.size)}, loaded in {seconds['load']:.1f} s; "
        f"{verdict.reads} reads and {verdict.writes} writes in {seconds['run']:.1f} s, "
        f"{verdict.interrupted} of the writes interrupted; {report.kills} kills; "
        f"verified in {seconds['verify']:.1f} s ({report.build} build)",
        *(f"skipped {text}" for text in report.skipped),
    ]
    print_verdict(out, report, lines, "demo")


def to_dict(report: DemoReport) -> dict[str, Any]:
    """The report for --json; latencies in ns, sizes in bytes."""
    last, snapshot = report.last, report.last.snapshot
    return {
        **run_dict(report, KINDS),
        "files": report.files,
        "bytes": report.size,
        "skipped": report.skipped,
        "repairs": last.recovered,
        "operations": sum(operations(last)),
        "operations_per_s": sum(operations(last)) / last.elapsed_s,
        "workers": [
            {
                "pid": pid,
                "operations": operations(last)[slot],
                "latency_ns": latencies_ns(snapshot, slot, KINDS),
                "kills": last.kills[slot],
                "repairs": last.repairs[slot],
                "memory": last.memory[slot],
            }
            for slot, pid in enumerate(last.pids)
        ],
        "verdict": dataclasses.asdict(report.verdict),
    }
