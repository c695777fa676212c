"""The options of commands that run workloads in virtual time."""

from __future__ import annotations

from typing import Any, Final

import click

from limpet.cli.common import Assignment, parameter_option
from limpet.fault.explore.sim_latency import PRESETS

_TIMED_OPTIONS: Final = (
    click.option("--profile", type=click.Choice(list(PRESETS)), default="rdma", show_default=True,
                 help="The latency model."),
    click.option("--model", "changes", type=Assignment(), multiple=True,
                 callback=lambda ctx, param, value: dict(value),
                 help="A charge of the model, NAME=VALUE, such as reads_wait=0; may be repeated."),
    click.option("--warm-up", type=click.IntRange(0), default=20, show_default=True,
                 help="Operations of each client that are not counted; before them it fills its "
                 "caches and claims blocks. 0: neither."),
    click.option("--nodes", type=click.IntRange(0, 8), default=0,
                 help="Memory nodes of the pool.  [default: as in the kind's paper]"),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
                 help="Of every random choice."),
    parameter_option,
)  # fmt: skip


def timed_options(command: Any) -> Any:
    """The options of commands that run workloads in virtual time."""
    for option in reversed(_TIMED_OPTIONS):
        command = option(command)
    return command
