"""`limpet demo`: runs fault/drill/demo.py and shows it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import click
from rich.console import Console

from limpet.cli.common import PoolUrl, console, json_option, print_json
from limpet.cli.demo_view import Lines, Screen, Silent, print_summary, to_dict
from limpet.fault.drill.demo import DemoParameters, run, standard_library
from limpet.fault.inject.interrupt import Interrupted


@click.command()
@click.option("--store", default="race", show_default=True, help="Kind of the store.")
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
def demo(
    store: str,
    clients: int,
    seconds: float,
    kill_rate: float,
    seed: int | None,
    data: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Kill workers at random while they rewrite the standard library, then verify everything.

    A pool of three nodes is filled with every file of Python's standard library. Workers read and
    rewrite them while a random one is killed again and again and replaced. Afterwards each read
    must have been whole and current, no key lost, every invariant intact and no byte leaked; only
    then is the exit status 0. The pool is removed in the end, also by Ctrl-C.
    """
    parameters = DemoParameters(
        url=url or f"shm://demo-{os.getpid()}",
        data=data or standard_library(),
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        store=store,
        clients=clients,
        seconds=seconds,
        kill_rate=kill_rate,
    )
    out = Console(stderr=True) if as_json else console()
    try:
        with contextlib.ExitStack() as stack:
            if out.is_terminal:
                report = run(parameters, stack.enter_context(Screen(out, parameters)))
            else:
                report = run(parameters, Silent() if as_json else Lines(out, parameters))
    except Interrupted as error:
        click.echo(f"{error}: the workers have ended and the pool is removed", err=True)
        raise SystemExit(128 + error.signal) from error
    if as_json:
        print_json(to_dict(report))
    else:
        print_summary(out, report)
    if not report.ok:
        raise SystemExit(1)
