"""`limpet bench cache`."""

from __future__ import annotations

import click

from limpet.bench.cli.options import COUNTS, List, advancing
from limpet.bench.figures import hit_ratios
from limpet.bench.peers import cache_report, caches, measure, report
from limpet.bench.peers.machine import facts
from limpet.bench.peers.workers import COMPUTE
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import console, json_option, print_json, table
from limpet.shm.errors import ParameterError


@click.command("cache")
@click.option("--streams", type=List(str), default=",".join(hit_ratios.STREAMS),
              show_default=True, help="Streams of requests.")  # fmt: skip
@click.option("--items", type=COUNTS, default="200,2000", show_default=True,
              help="Items that a cache has at most.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=200_000, show_default=True,
              help="Requests of a stream.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--speed", is_flag=True,
              help="Measure times, not hit ratios; the options below are for that.")  # fmt: skip
@click.option("--peers", "names", type=List(str), default=",".join(caches.MAKERS),
              show_default=True, help="What is measured beside the cache.")  # fmt: skip
@click.option("--processes", type=COUNTS, default="1,2,8", show_default=True,
              help="Numbers of processes.")  # fmt: skip
@click.option("--rounds", type=int, default=5, show_default=True,
              help="How often everything is measured.")  # fmt: skip
@click.option("--seconds-per-cell", type=float, default=0.3, show_default=True,
              help="Time of one loop, about.")  # fmt: skip
@click.option("--records", type=int, default=50_000, show_default=True,
              help="Pairs in the cache.")  # fmt: skip
@json_option
def cache_command(
    streams: tuple[str, ...],
    items: tuple[int, ...],
    requests: int,
    seed: int,
    speed: bool,
    names: tuple[str, ...],
    processes: tuple[int, ...],
    rounds: int,
    seconds_per_cell: float,
    records: int,
    as_json: bool,
) -> None:
    """Hit ratios of the cache's policies, beside exact LRU and those of other packages.

    With --speed instead the time of a hit, of a set, of a computation, and the rate of a mix,
    beside Redis and others. Packages that are not installed are left out, and named.
    """
    if speed:
        _measure_speed(names, processes, rounds, seconds_per_cell, records, seed, as_json)
        return
    if unknown := sorted(set(streams) - set(hit_ratios.STREAMS)):
        raise click.UsageError(
            f"there is no stream {', '.join(unknown)}; there is {', '.join(hit_ratios.STREAMS)}"
        )
    asked = {name: hit_ratios.stream(name, requests, seed) for name in streams}
    found = list(hit_ratios.run(asked, items))
    if as_json:
        ratios = [ratio._asdict() for ratio in found]
        print_json({"machine": facts(), "requests": requests, "seed": seed, "ratios": ratios})
        return
    places = list(dict.fromkeys((ratio.stream, ratio.items) for ratio in found))
    by = {((ratio.stream, ratio.items), ratio.policy): ratio.ratio for ratio in found}
    shown = table(f"hits in 100 of {requests:,} requests", "policy")
    for name, count in places:
        shown.add_column(f"{name}\n{count:,} items", justify="right")
    for policy in dict.fromkeys(ratio.policy for ratio in found):
        shown.add_row(policy, *(f"{100 * by[place, policy]:.1f}" for place in places))
    console().print(shown)


def _measure_speed(
    names: tuple[str, ...],
    processes: tuple[int, ...],
    rounds: int,
    seconds_per_cell: float,
    records: int,
    seed: int,
    as_json: bool,
) -> None:
    """Exit status 0 only if everything that is there ran to its end."""
    try:
        options = measure.Options(
            workload=Workload(records, seed=seed),
            processes=processes,
            mixes=("R",),
            rounds=rounds,
            seconds_per_cell=seconds_per_cell,
            basic=(*measure.LOOPS, COMPUTE),
        )
        drivers = caches.drivers(names)
    except ParameterError as error:
        raise click.UsageError(str(error)) from error
    there = sum(driver.missing() is None for driver in drivers)
    with advancing(measure.steps(options, there)) as advance:
        outcome = measure.run(options, drivers, advance)
    if as_json:
        print_json({**report.as_json(outcome, facts()), "benchmark": "cache"})
    else:
        cache_report.print_tables(outcome, facts(), console())
    if outcome.failed:
        raise SystemExit(1)
