"""`limpet bench figures`: the papers' figures and tables beside ours."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import click

from limpet.bench.cli.options import PATH, advancing, check_files, interruptible
from limpet.bench.figures import entries
from limpet.cli.common import console, json_option, print_json, simulation, table
from limpet.fault.explore.sim_latency import PRESETS, model_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.bench.figures.entries import Entry, Found

PAPERS = ("fusee", "loco", "rcuckoo", "rtx", "swarm")


@click.command("figures")
@click.argument("paper", type=click.Choice(PAPERS))
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="Few clients and operations: counts and orders only.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Of every random choice.")  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="Name the entries, and run none.")
@click.option("--page", type=PATH, help="Put the results into this page, such as docs/figures.md.")
@click.option("--png", type=PATH, help="A picture of them, too; needs matplotlib.")
@json_option
def figures_command(
    paper: str,
    names: tuple[str, ...],
    quick: bool,
    seed: int,
    listing: bool,
    page: pathlib.Path | None,
    png: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Run the entries NAMES of a PAPER, or all: its values beside ours, and a verdict.

    Of most entries, equal arguments give equal figures on any machine; those on the machine's clock
    say so. All of a paper take three to ten minutes, --quick a few seconds each.
    """
    module = simulation(f"limpet.bench.figures.{paper}_entries")
    known: Sequence[Entry] = module.ENTRIES
    if listing:
        for entry in known:
            click.echo(f"{entry.name}: {entry.title}")
        return
    check_files("--png", png, page)
    if page is not None and (names or quick):
        raise click.UsageError("--page is for all entries of a paper, none of them quick")
    with interruptible(), advancing(len(names or known)) as advance:
        found = list(entries.run(paper, known, names, entries.Scale(quick, seed), advance))
    model = model_lines(getattr(module, "MODEL", PRESETS["rdma"]))
    if page is not None:
        text = page.read_text() if page.exists() else ""
        page.write_text(entries.with_section(text, paper, entries.section(paper, found, model)))
    if png is not None:
        entries.save_picture(found, png)
    if as_json:
        print_json({"model": model, "entries": [dataclasses.asdict(one) for one in found]})
        return
    for one in found:
        _print(one)
    click.echo("\n".join(model))


def _print(one: Found) -> None:
    numbers = ("paper", "here", "factor")
    shown = table(f"{one.paper} {one.name}: {one.title}", "", " ", *numbers, right=numbers)
    for row in entries.rows(one):
        shown.add_row(*row)
    wrong = f" ({'; '.join(one.wrong)})" if one.wrong else ""
    parameters = ", ".join(f"{name} {value}" for name, value in one.parameters.items())
    if one.points:
        console().print(shown)
    else:
        click.echo(shown.title)
    lines = (
        f"{one.verdict}{wrong}", f"paper: {one.said}", one.reason and f"here: {one.reason}",
        f"{one.unit}; {parameters}; on the {one.clock} clock" if one.points else "",
    )  # fmt: skip
    click.echo("\n".join(f"  {line}" for line in lines if line) + "\n")
