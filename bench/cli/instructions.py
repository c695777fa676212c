"""`limpet bench instructions`."""

from __future__ import annotations

from typing import Any

import click

from limpet.bench import instructions
from limpet.bench.cli.options import List, advancing
from limpet.bench.peers.machine import facts
from limpet.cli.common import console, json_option, print_json, table
from limpet.shm.errors import ParameterError


@click.command("instructions")
@click.option("--subjects", type=List(str), default=",".join(instructions.subjects()),
              show_default=True, help="Kinds of stores, and channels.")  # fmt: skip
@click.option("--only", type=List(str), default="", help="Operations; all by default.")
@click.option("--ops", type=click.IntRange(1), default=5000, show_default=True,
              help="How many of each operation are counted.")  # fmt: skip
@json_option
def instructions_command(
    subjects: tuple[str, ...], only: tuple[str, ...], ops: int, as_json: bool
) -> None:
    """Count the instructions of each operation, with valgrind's callgrind.

    Takes ten seconds for each operation. The counts are the same however busy the machine is.
    """
    if reason := instructions.missing():
        raise click.ClickException(reason)
    try:
        pairs = instructions.chosen(subjects, only)
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    with advancing(len(pairs)) as advance:
        found = []
        for cost in instructions.run(pairs, ops):
            found.append(cost)
            advance(f"{cost.subject}: {cost.operation}")
    if as_json:
        print_json({"machine": facts(), "ops": ops, "costs": [cost._asdict() for cost in found]})
        return
    shown = table(f"instructions of one operation, of {ops}", "subject", "operation",
                  "instructions", right=("instructions",))  # fmt: skip
    before = ""
    for cost in found:
        name = cost.subject if cost.subject != before else ""
        shown.add_row(name, cost.operation, f"{cost.instructions:,.0f}")
        before = cost.subject
    machine: dict[str, Any] = facts()
    shown.caption = f"{machine['python']}, limpet {machine['limpet_build']}"
    console().print(shown)
