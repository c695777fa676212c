"""`limpet bench lines`."""

from __future__ import annotations

import click

from limpet.bench import instructions, lines
from limpet.bench.cli.options import List, advancing
from limpet.cli.common import console, json_option, print_json, table
from limpet.shm.errors import ParameterError


@click.command("lines")
@click.option("--subjects", type=List(str), default=",".join(instructions.subjects()),
              show_default=True, help="Kinds of stores, and channels.")  # fmt: skip
@click.option("--only", type=List(str), default="", help="Operations; all by default.")
@click.option("--ops", type=click.IntRange(1), default=1000, show_default=True,
              help="How many of each operation are counted.")  # fmt: skip
@json_option
def lines_command(
    subjects: tuple[str, ...], only: tuple[str, ...], ops: int, as_json: bool
) -> None:
    """Count the cache lines of shared memory that each operation touches.

    They are the same on any machine, however busy it is.
    """
    try:
        pairs = instructions.chosen(subjects, only)
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    with advancing(len(pairs)) as advance:
        found = []
        for touched in lines.run(pairs, ops):
            found.append(touched)
            advance(f"{touched.subject}: {touched.operation}")
    if as_json:
        print_json({"ops": ops, "lines": [touched._asdict() for touched in found]})
        return
    shown = table(
        f"lines of 64 bytes in one operation, of {ops}",
        "subject", "operation", "touched", "changed", "control",
        right=("touched", "changed", "control"),
    )  # fmt: skip
    before = ""
    for one in found:
        name = one.subject if one.subject != before else ""
        numbers = (one.lines, one.changed, one.control)
        shown.add_row(name, one.operation, *(f"{number:.1f}" for number in numbers))
        before = one.subject
    shown.caption = "changed: of those touched; control: of those touched, in the control segment"
    console().print(shown)
