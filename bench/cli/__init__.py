"""`limpet bench`: the command line of the benchmarks."""

from __future__ import annotations

from typing import Any

import click

from limpet.bench.cli.batches import batches_command
from limpet.bench.cli.cache import cache_command
from limpet.bench.cli.channels import channels_command, power_command
from limpet.bench.cli.coherence import coherence_command
from limpet.bench.cli.figures import figures_command
from limpet.bench.cli.footprint import footprint_command
from limpet.bench.cli.instructions import instructions_command
from limpet.bench.cli.jobs import jobs_command
from limpet.bench.cli.lines import lines_command
from limpet.bench.cli.net import net_command
from limpet.bench.cli.options import leaving_on_sigterm
from limpet.bench.cli.peers import peers_command
from limpet.bench.cli.processes import kills_command, timeline_command
from limpet.bench.cli.transactions import transactions_command
from limpet.bench.cli.virtual import virtual_command
from limpet.cli.common import Commands


class Benchmarks(Commands):
    """A group whose commands remove their pools and end their processes on SIGTERM, too."""

    def invoke(self, ctx: click.Context) -> Any:
        with leaving_on_sigterm():
            return super().invoke(ctx)


@click.group(cls=Benchmarks)
def bench() -> None:
    """Measure limpet's stores."""


for command in (
    peers_command,
    transactions_command,
    channels_command,
    power_command,
    batches_command,
    footprint_command,
    kills_command,
    timeline_command,
    figures_command,
    virtual_command,
    instructions_command,
    lines_command,
    cache_command,
    jobs_command,
    coherence_command,
    net_command,
):
    bench.add_command(command)
