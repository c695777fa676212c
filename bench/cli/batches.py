"""`limpet bench batches`."""

from __future__ import annotations

import dataclasses

import click

from limpet.bench import batches, instructions
from limpet.bench.cli.options import List, advancing
from limpet.bench.peers.machine import facts
from limpet.cli.common import console, json_option, print_json
from limpet.shm.errors import ParameterError
from limpet.stores.registry import KINDS


@click.command("batches")
@click.option("--store", "stores", type=List(str), default=",".join(KINDS), show_default=True,
              help="Kinds of stores.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=batches.ROUNDS, show_default=True,
              help="Rounds of each, of which the median is taken.")  # fmt: skip
@click.option("--keys", type=click.IntRange(batches.SOME), default=batches.SOME, show_default=True,
              help=f"Keys of a store; {batches.SOME:,} of them are used in a round.")  # fmt: skip
@click.option("--counts/--no-counts", default=True, show_default=True,
              help="Count instructions, too, which takes a minute for each kind.")  # fmt: skip
@json_option
def batches_command(
    stores: tuple[str, ...], rounds: int, keys: int, counts: bool, as_json: bool
) -> None:
    """Compare get_many and put_many with single operations on the same keys."""
    if counts and (reason := instructions.missing()):
        raise click.ClickException(f"{reason}; or say --no-counts")
    try:
        with advancing(len(stores) * len(instructions.SINGLY)) as advance:
            found = []
            for one in batches.run(stores, rounds, counts, keys):
                found.append(one)
                advance(f"{one.kind}: {one.operation}")
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        results = [dataclasses.asdict(one) for one in found]
        print_json({"machine": facts(), "keys": keys, "results": results})
    else:
        console().print(batches.results_table(found, keys))
