"""`limpet drill bank`: runs fault/drill/bank.py and shows it."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import click
from rich.console import Console

from limpet.cli.common import console, print_json
from limpet.cli.drill_run import check_outputs, fault_options, run_parameters, shown
from limpet.cli.drill_view import faults_text, print_clients, print_verdict, run_dict
from limpet.fault.drill.bank import BankParameters, BankReport, run
from limpet.fault.drill.bank_books import UNORDERED

KINDS: Final = ("read", "transfer")


@click.command()
@fault_options(kill_rate=50.0)
@click.option(
    "--store",
    type=click.Choice(["rtx-sherman", *UNORDERED]),
    default="rtx-sherman",
    show_default=True,
    help="The kind of store with the accounts; both: each kind has some of them.",
)
@click.option("--accounts", type=click.IntRange(2, 100_000), default=64, show_default=True,
              help="Few of them make many conflicts.")  # fmt: skip
def bank(history: str | None, as_json: bool, **given: Any) -> None:
    """Kill and stop clients that make transfers in transactions, then judge their history.

    Clients move money between two or three accounts, or read some or all accounts, each time in one
    transaction. The command kills and replaces, or stops, a random client again and again.
    Afterwards all money must be there, also in every transaction that read all accounts; the
    history of transactions must be strictly serializable, every invariant intact, no byte leaked
    and no client blocked; only then is the exit status 0. The pool is gone in the end, also after
    Ctrl-C.
    """
    check_outputs(history)
    parameters = BankParameters(**run_parameters(given))
    with shown(parameters, as_json, KINDS) as view:
        report = run(parameters, view, history)
    if as_json:
        print_json(to_dict(report))
    else:
        print_summary(console(), report)
    if not report.ok:
        raise SystemExit(1)


def print_summary(out: Console, report: BankReport) -> None:
    """Print the counts of the run and the verdict on each check."""
    last, counts, judged = report.last, report.counts, report.judged
    print_clients(out, report, KINDS)
    lines = [
        f"{counts.transfers:,} transfers and {counts.reads:,} reads ({counts.totals:,} of all "
        f"accounts) committed in {last.elapsed_s:.1f} s; {counts.aborted:,} attempts aborted, "
        f"{counts.given_up:,} transactions given up, {counts.unknown:,} of unknown outcome, of "
        f"which {judged.happened:,} were seen to have happened",
        faults_text(report),
        f"history of {judged.transactions:,} transactions judged in "
        f"{report.seconds['judge']:.1f} s: {judged.verdict.value} ({report.build} build)",
    ]
    print_verdict(out, report, lines)


def to_dict(report: BankReport) -> dict[str, Any]:
    """The report for --json; times in ns, sizes in bytes."""
    return {
        **run_dict(report, KINDS),
        "counts": dataclasses.asdict(report.counts),
        "history": report.judged.as_dict(),
    }
