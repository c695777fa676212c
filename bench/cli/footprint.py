"""`limpet bench footprint`: memory a key, and inserts while a store grows."""

from __future__ import annotations

import dataclasses

import click

from limpet.bench.cli.options import List
from limpet.bench.peers import footprint
from limpet.cli.common import console, json_option, print_json
from limpet.shm.errors import ParameterError


@click.command("footprint")
@click.option(
    "--store",
    "stores",
    type=List(str),
    default="race,rtx-race,fusee,swarm,rcuckoo,loco,rtx-sherman",
    show_default=True,
    help="Kinds of limpet's stores; with replicas: fusee:3.",
)
@click.option("--peers", type=List(str), default=",".join(footprint.PEERS), show_default=True,
              help="What to measure beside them.")  # fmt: skip
@click.option("--keys", type=click.IntRange(1), default=1_000_000, show_default=True,
              help="Keys that are inserted.")  # fmt: skip
@click.option("--key-bytes", type=int, default=24, show_default=True, help="Bytes of each key.")
@click.option("--value-bytes", type=int, default=64, show_default=True, help="Bytes of each value.")
@json_option
def footprint_command(
    stores: tuple[str, ...],
    peers: tuple[str, ...],
    keys: int,
    key_bytes: int,
    value_bytes: int,
    as_json: bool,
) -> None:
    """Insert keys one by one; report the memory that each takes, and how long inserts take.

    Stores that grow begin with room for a thousand keys. A peer that is not installed is named as
    missing, with how to get it.
    """
    unknown = [name for name in peers if name not in footprint.PEERS]
    if unknown:
        raise click.UsageError(f"there is no peer {unknown[0]!r}: {', '.join(footprint.PEERS)}")
    try:
        found = list(footprint.run(stores, peers, keys, key_bytes, value_bytes))
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    else:
        console().print(footprint.results_table(found))
    for name, reason in footprint.missing(peers).items():
        click.echo(f"missing: {name}: {reason}", err=as_json)
