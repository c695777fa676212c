"""`limpet drill cache`: runs fault/drill/cache_drill.py and shows it."""

from __future__ import annotations

from typing import Any, Final

import click

from limpet.cli.common import console, print_json
from limpet.cli.drill_run import fault_options, run_parameters, shown
from limpet.cli.drill_view import faults_text, print_clients, print_verdict, run_dict
from limpet.fault.drill.cache_drill import CacheDrillParameters, run

KINDS: Final = ("read", "change")


@click.command("cache")
@fault_options(kill_rate=50.0, clients=8, seconds=60.0, stop_rate=0.0, history=False)
@click.option("--keys", type=click.IntRange(3, 100_000), default=300, show_default=True,
              help="Keys that are set, and as many that are computed.")  # fmt: skip
@click.option("--value-size", type=click.IntRange(2, 100_000), default=400, show_default=True,
              help="Bytes of a value, at most.")  # fmt: skip
def cache_drill(as_json: bool, **given: Any) -> None:
    """Kill workers that share a cache which expires, evicts, invalidates and computes.

    The bounds must be kept all the time, no value served after its deadline, none computed by two
    living workers at a time, no key stuck, every invariant intact, no byte leaked and no worker
    blocked; only then is the exit status 0. The pool is gone in the end, also after Ctrl-C.
    """
    parameters = CacheDrillParameters(**run_parameters(given))
    with shown(parameters, as_json, KINDS) as view:
        report = run(parameters, view)
    if as_json:
        print_json({**run_dict(report, KINDS), "stats": report.stats, "looks": report.looks})
    else:
        out = console()
        print_clients(out, report, KINDS)
        names = ("hits", "misses", "sets", "deletes", "evictions", "expirations", "computations")
        lines = [
            f"in {report.last.elapsed_s:.1f} s: "
            + ", ".join(f"{report.stats[name]:,} {name}" for name in names),
            f"the table was counted {report.looks:,} times while all workers stood still",
            f"{faults_text(report)} ({report.build} build)",
        ]
        print_verdict(out, report, lines)
    if not report.ok:
        raise SystemExit(1)
