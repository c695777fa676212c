"""`limpet drill damage`: random damage to the memory of a pool that clients use."""

from __future__ import annotations

import dataclasses
import secrets

import click

from limpet.cli.common import json_option, table
from limpet.cli.drill_run import exit_status
from limpet.cli.faults import report
from limpet.fault.drill.damage import OUTCOMES, Case, DamageReport, kinds, run
from limpet.fault.inject.interrupt import ended_by_signals


@click.command()
@click.argument("kinds_", nargs=-1, type=click.Choice(kinds()), metavar="[KIND]...")
@click.option("--cases", type=click.IntRange(1), default=300, show_default=True,
              help="Cases of all kinds together, in equal parts.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Seed of random choices; printed if drawn.")
@click.option("--case", "only", type=click.IntRange(0), help="Only this one: repeats a failure.")
@json_option
def damage(
    kinds_: tuple[str, ...], cases: int, seed: int | None, only: int | None, as_json: bool
) -> None:
    """Damage the memory of pools that clients use, and judge the results of their operations.

    KIND is one of stores or channels; all of them if none is named. Bits, words, lines and pages of
    the segments are overwritten, before operations and between them. No client may end by a signal,
    hang, or ask for memory without bound; an operation gives a right result, or raises a documented
    error. The table counts cases by the worst of their results; a damaged value is a failure where
    the kind has its values under a checksum. Exit status 0 only if there was no failure.
    """
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    wanted = kinds_ or tuple(kinds())
    share = -(-cases // len(wanted))
    reports: list[DamageReport] = []
    with exit_status(), ended_by_signals() as check:
        for kind in wanted:
            reports.append(run(kind, share, seed, only, lambda case: check()))
            if not as_json:
                click.echo(f"{kind}: {reports[-1].verdict}", err=True)
    numbers = ("cases", *OUTCOMES)
    shown = table(f"damage, seed {seed}", "kind", *numbers, "verdict", right=numbers)
    for one in reports:
        counts = (str(one.outcomes[name]) for name in OUTCOMES)
        shown.add_row(one.kind, str(one.cases), *counts, one.verdict)
    report(
        as_json,
        [
            {**dataclasses.asdict(one), "failed": [_as_dict(case) for case in one.failed],
             "verdict": one.verdict}
            for one in reports
        ],
        shown,
        (_text(one, case) for one in reports for case in one.failed),
        all(one.verdict == "ok" for one in reports),
    )  # fmt: skip


def _as_dict(case: Case) -> dict[str, object]:
    return {**dataclasses.asdict(case), "damages": [str(one) for one in case.damages]}


def _text(of: DamageReport, case: Case) -> str:
    repeat = f"    limpet drill damage {of.kind} --seed {of.seed} --case {case.number}"
    damages = (f"    {one}" for one in case.damages)
    return "\n".join(["", f"{of.kind}, case {case.number}:", *case.failures, *damages, repeat])
