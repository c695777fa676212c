"""`limpet bench peers`: stores beside other systems."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import click
from rich.console import Console

from limpet.bench.cli.options import COUNTS, PATH, List, advancing, check_files
from limpet.bench.peers import machine, report
from limpet.bench.peers import measure as peers
from limpet.bench.peers import sizes as by_size
from limpet.bench.peers.ycsb import YCSB_MIXES, Workload
from limpet.shm.errors import ParameterError
from limpet.shm.parameters import parse_size


@click.command("peers")
@click.option(
    "--store",
    "stores",
    type=List(str),
    default="race",
    show_default=True,
    help="Kinds of limpet's stores to measure; with replicas: fusee:3.",
)
@click.option(
    "--peers",
    "names",
    type=List(str),
    default=",".join(peers.PEERS),
    show_default=True,
    help="What to measure them against.",
)
@click.option(
    "--processes",
    type=COUNTS,
    default="1,2",
    show_default=True,
    help="Numbers of processes to run with.",
)
@click.option(
    "--mix",
    "mixes",
    type=List(str.upper),
    default=",".join(YCSB_MIXES),
    show_default=True,
    help="YCSB mixes to run; W: updates only.",
)
@click.option(
    "--rounds",
    type=int,
    default=5,
    show_default=True,
    help="How often everything is measured; medians are reported.",
)
@click.option(
    "--seconds-per-cell",
    type=float,
    default=1.0,
    show_default=True,
    help="Time that a slow store gets for one loop; it then runs fewer operations.",
)
@click.option(
    "--operations",
    type=int,
    default=200_000,
    show_default=True,
    help="Operations of one process in one loop, at most.",
)
@click.option("--batch", type=int, default=100, show_default=True,
              help="Keys of one call in the loops of batches.")  # fmt: skip
@click.option("--records", type=int, default=100_000, show_default=True,
              help="Pairs that are stored at first.")  # fmt: skip
@click.option("--key-bytes", type=int, default=24, show_default=True, help="Bytes of each key.")
@click.option("--value-bytes", type=int, default=64, show_default=True, help="Bytes of each value.")
@click.option(
    "--theta",
    "thetas",
    type=List(float),
    default="0.99",
    show_default=True,
    help="Skews of the Zipfian distribution, one run each; 0 is uniform.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of every random choice.")
@click.option(
    "--sizes",
    type=List(parse_size),
    help="Measure gets, views and puts of values of these sizes instead, in one process.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--png",
    type=PATH,
    help="Draw a bar chart into this file; of one skew.",
)
@click.option(
    "--lines",
    type=PATH,
    help="Draw the rates of the mixes by the number of processes into this PNG file.",
)
def peers_command(
    stores: tuple[str, ...],
    names: tuple[str, ...],
    processes: tuple[int, ...],
    mixes: tuple[str, ...],
    rounds: int,
    seconds_per_cell: float,
    operations: int,
    batch: int,
    records: int,
    key_bytes: int,
    value_bytes: int,
    thetas: tuple[float, ...],
    seed: int,
    sizes: tuple[int, ...] | None,
    as_json: bool,
    png: pathlib.Path | None,
    lines: pathlib.Path | None,
) -> None:
    """Measure stores against LMDB, Redis and other peers, driven by the same loop.

    A peer that is not installed is named as missing, with how to get it. Several skews: their
    tables one after the other, as JSON a list. The exit status is 0 only if every store and every
    peer that is there ran to its end.
    """
    try:
        settings = [
            peers.Options(
                workload=Workload(records, key_bytes, value_bytes, theta, operations, seed),
                processes=processes,
                mixes=mixes,
                rounds=rounds,
                seconds_per_cell=seconds_per_cell,
                batch=batch,
            )
            for theta in thetas
        ]
        peers.drivers(stores, names)
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if not (stores or names):
        raise click.UsageError("there is nothing to measure: name a --store or one of the --peers")
    if not thetas or (png is not None and len(thetas) > 1):
        raise click.UsageError("there must be a --theta, and with --png just one")
    if lines is not None and not mixes:
        raise click.UsageError("--lines draws the rates of mixes: name a --mix")
    check_files("--png", png)
    check_files("--lines", lines)
    facts = machine.facts()
    if sizes:
        _show_sizes(stores, names, sizes, rounds, seconds_per_cell, as_json)
        return
    outcomes = [_run(options, peers.drivers(stores, names)) for options in settings]
    if as_json:
        found = [report.as_json(outcome, facts) for outcome in outcomes]
        click.echo(json.dumps(found[0] if len(found) == 1 else found, indent=2))
    else:
        for outcome in outcomes:
            report.print_tables(outcome, facts, Console())
    if png is not None and outcomes[0].versions:
        report.save_chart(outcomes[0], facts, png)
    if lines is not None and any(outcome.versions for outcome in outcomes):
        report.save_lines(outcomes, facts, lines)
    if any(outcome.failed for outcome in outcomes):
        raise SystemExit(1)


def _show_sizes(
    stores: tuple[str, ...],
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Run the loops of `bench/peers/sizes.py`, and print their table."""
    with advancing(len(sizes) * rounds) as advance:
        found = by_size.run(lambda: peers.drivers(stores, names), sizes, rounds, seconds, advance)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        Console().print(by_size.results_table(found))
        for name, reason in {**found.missing, **found.failed}.items():
            click.echo(f"{name}: {reason}")
    if found.failed:
        raise SystemExit(1)


def _run(options: peers.Options, drivers: list[peers.Driver]) -> peers.Outcome:
    """Run with a progress bar on stderr."""
    there = [driver for driver in drivers if driver.missing() is None]
    scanned = len(peers.scanned(there))
    total = peers.steps(options, len(there), scanned)
    with advancing(total) as advance:
        return peers.run(options, drivers, advance)
