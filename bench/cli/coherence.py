"""`limpet bench coherence`."""

from __future__ import annotations

import click

from limpet.bench.cli.options import COUNTS, List, advancing
from limpet.bench.figures import coherence
from limpet.bench.peers.machine import facts
from limpet.cli.common import console, json_option, print_json, table
from limpet.shm.errors import ParameterError


@click.command("coherence")
@click.option("--store", "stores", type=List(str), default=",".join(coherence.STORES),
              show_default=True, help="Kinds of stores.")  # fmt: skip
@click.option("--sizes", type=COUNTS, default="64,1024,16384", show_default=True,
              help="Sizes of values, in bytes.")  # fmt: skip
@click.option("--ops", type=click.IntRange(1), default=2000, show_default=True,
              help="Operations of a round.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True,
              help="Rounds of each mode, by turns.")  # fmt: skip
@json_option
def coherence_command(
    stores: tuple[str, ...], sizes: tuple[int, ...], ops: int, rounds: int, as_json: bool
) -> None:
    """Measure what each mode of coherence costs: coherent, of several hosts, incoherent."""
    try:
        with advancing(len(stores) * len(sizes)) as advance:
            found = list(coherence.run(stores, sizes, ops, rounds, advance))
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json({
            "machine": facts(), "ops": ops, "rounds": rounds,
            "costs": [cost._asdict() for cost in found],
        })  # fmt: skip
        return
    shown = table(f"one client, {rounds} rounds of {ops} operations", "store", "size", "operation",
                  "mode", "us", "to coherent", "lines", "fences",
                  right=("size", "us", "to coherent", "lines", "fences"))  # fmt: skip
    for cost in found:
        shown.add_row(cost.store, str(cost.size), cost.operation, cost.mode,
                      f"{cost.ns / 1000:.2f}", f"{cost.ratio:.2f}", f"{cost.lines:.1f}",
                      f"{cost.fences:.1f}")  # fmt: skip
    machine = facts()
    shown.caption = f"{machine['cpu']}, {machine['python']}, limpet {machine['limpet_build']}"
    console().print(shown)
