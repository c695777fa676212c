"""`limpet bench net`: the price of a message to a memory node over a network."""

from __future__ import annotations

import dataclasses

import click

from limpet.bench.peers import machine, net
from limpet.cli.common import console, json_option, print_json


@click.command("net")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True,
              help="Rounds; each has a moment for every subject.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0.001, 10), default=0.1, show_default=True,
              help="How long a moment is.")  # fmt: skip
@click.option("--kills", type=click.IntRange(0), default=10, show_default=True,
              help="Clients and servers that are killed; 0: none.")  # fmt: skip
@json_option
def net_command(rounds: int, seconds: float, kills: int, as_json: bool) -> None:
    """Measure messages to a server of memory nodes over loopback, beside bare TCP in the same run.

    Then one to four clients at a time. Then kill clients amid their puts, and servers, and report
    how long the other side takes. A peer that is not installed is named as missing. Needs libfabric
    (docs/network.md).
    """
    rows = net.run(rounds, seconds)
    crowds = net.crowds(rounds, seconds)
    losses = net.losses(kills) if kills else []
    absent = net.missing()
    if as_json:
        print_json(
            {
                "machine": machine.facts(),
                "rows": [dataclasses.asdict(row) for row in rows],
                "crowds": [dataclasses.asdict(one) for one in crowds],
                "losses": [dataclasses.asdict(one) for one in losses],
                "missing": absent,
            }
        )
    else:
        console().print(net.rows_table(rows))
        console().print(net.crowds_table(crowds))
        if losses:
            console().print(net.losses_table(losses))
    for name, reason in absent.items():
        click.echo(f"missing: {name}: {reason}", err=as_json)
