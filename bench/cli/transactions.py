"""`limpet bench transactions`."""

from __future__ import annotations

import dataclasses
import statistics

import click

from limpet.bench.cli.options import COUNTS, List, advancing
from limpet.bench.peers import transactions
from limpet.bench.peers.drivers import DriverError
from limpet.bench.peers.machine import facts
from limpet.bench.peers.transactions import Found
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import console, json_option, print_json, table
from limpet.shm.errors import ParameterError


@click.command("transactions")
@click.option("--peers", type=List(str), default=",".join(transactions.PEERS), show_default=True,
              help="Kinds of stores, and others.")  # fmt: skip
@click.option("--transfers", type=COUNTS, default="2,8,64", show_default=True,
              help="Numbers of keys that transfers read and write.")  # fmt: skip
@click.option("--reads", type=COUNTS, default="10,1000", show_default=True,
              help="Numbers of keys that transactions only read.")  # fmt: skip
@click.option("--processes", type=COUNTS, default="1,2", show_default=True,
              help="Numbers of processes to run with.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True,
              help="Interleaved rounds.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=0.25,
              show_default=True, help="Of each case in each round.")  # fmt: skip
@click.option("--records", type=click.IntRange(2), default=10_000, show_default=True,
              help="Keys in each store.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of every random choice.")  # fmt: skip
@json_option
def transactions_command(
    peers: tuple[str, ...],
    transfers: tuple[int, ...],
    reads: tuple[int, ...],
    processes: tuple[int, ...],
    rounds: int,
    seconds: float,
    records: int,
    seed: int,
    as_json: bool,
) -> None:
    """Run transactions of limpet and of others, and compare their rates.

    A transfer reads and writes so many keys; a read reads them, all at one moment. Exit status 0
    only if every peer that is installed ran to its end.
    """
    try:
        workload = Workload(records=records, seed=seed)
        wanted = transactions.cases(transfers, reads)
        with advancing(rounds * len(peers)) as advance:
            found = transactions.run(peers, wanted, processes, rounds, seconds, workload, advance)
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    except DriverError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        rows = [dataclasses.asdict(one) for one in found]
        print_json({"machine": facts(), "rounds": rounds, "found": rows})
        return
    numbers = ("us each", "a second", "vs LMDB", "vs 1 p.")
    shown = table(
        "transactions", "case", "processes", "peer", *numbers, right=("processes", *numbers)
    )
    before = ("", 0)
    for one in found:
        here = (one.case.name(), one.processes)
        shown.add_row(
            here[0] if here[0] != before[0] else "",
            str(here[1]) if here != before else "",
            one.peer,
            *_figures(one, found),
        )
        before = here
    console().print(shown)


def _figures(one: Found, found: list[Found]) -> tuple[str, str, str, str]:
    """Time of one, rate, and ratios to LMDB and to one process, as text."""
    if one.missing:
        return "not installed", "", "", ""
    rate = statistics.median(one.rates)
    return (
        f"{one.processes / rate * 1e6:,.1f}",
        f"{rate:,.0f}",
        _ratio(one, [o for o in found if o.peer == "lmdb" and o.processes == one.processes]),
        _ratio(one, [o for o in found if o.peer == one.peer and o.processes == 1]),
    )


def _ratio(one: Found, others: list[Found]) -> str:
    for other in others:
        if other.case == one.case:
            value = transactions.ratio(one, other)
            return "" if value is None else f"{value:.2f}"
    return ""
