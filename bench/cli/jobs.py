"""`limpet bench jobs`: queues of jobs and executors against their peers."""

from __future__ import annotations

import click
from rich.text import Text

from limpet.bench.cli.options import COUNTS, List, advancing, interruptible
from limpet.bench.peers import jobs as peers
from limpet.cli.common import console, json_option, print_json
from limpet.shm.errors import ParameterError


@click.command("jobs")
@click.option("--cases", type=List(str), default=",".join(peers.CASES), show_default=True,
              help="What to time.")  # fmt: skip
@click.option("--workers", type=COUNTS, default="1,2,4", show_default=True,
              help="Numbers of worker processes.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(10), default=2000, show_default=True,
              help="Jobs of each loop.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True,
              help="How often everything is measured; medians are reported.")  # fmt: skip
@json_option
def jobs_command(
    cases: tuple[str, ...], workers: tuple[int, ...], jobs: int, rounds: int, as_json: bool
) -> None:
    """Measure queues of jobs against multiprocessing's, Redis streams and huey; and executors.

    Peers that are not installed are named as missing. Exit status 0 only if every worker answered.
    """
    found: list[peers.Result] = []
    try:
        with interruptible(), advancing(len(cases) * len(workers)) as advance:
            for text, results in peers.run(cases, workers, jobs, rounds):
                advance(text)
                found += results
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(peers.as_json(found))
    else:
        console().print(peers.results_table(found))
        for name, reason in peers.missing(found).items():
            console().print(Text(f"missing: {name}: {reason}", style="yellow"), soft_wrap=True)
