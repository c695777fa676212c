"""`limpet worker`: workers for a named executor, in a program of their own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

import limpet
from limpet.cli.common import url_argument


@click.command()
@url_argument
@click.argument("name")
@click.option("--workers", type=click.IntRange(1, 1000), help="Worker processes.  [default: cores]")
def worker(url: str, name: str, workers: int | None) -> None:
    """Run calls of the programs that have the executor NAME of a pool; Ctrl-C or SIGTERM ends it.

    Functions are imported from the current folder, or from where Python finds modules. At SIGTERM,
    workers end when the calls that they run are done; at Ctrl-C they give them back.
    """
    sys.path.insert(0, str(Path.cwd()))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with limpet.Executor(workers, pool=url, name=name) as executor:
            click.echo(f"works for {name!r} of {url}; Ctrl-C ends it", err=True)
            executor.serve()
    except KeyboardInterrupt:
        click.echo("ended", err=True)
