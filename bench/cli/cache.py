"""`limpet bench cache`."""

from __future__ import annotations

import pathlib
from typing import Final

import click

from limpet.bench.cli.options import COUNTS, List, advancing
from limpet.bench.figures import hit_ratios
from limpet.bench.figures.traces import Requests, read
from limpet.bench.peers import cache_report, caches, measure, report
from limpet.bench.peers.machine import facts
from limpet.bench.peers.workers import COMPUTE
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import console, json_option, plain, print_json, table
from limpet.shm.errors import ParameterError

ITEMS: Final = (200, 2000)
"""Of a cache that streams are asked of."""


@click.command("cache")
@click.option("--streams", type=List(str), default=",".join(hit_ratios.STREAMS),
              show_default=True, help="Streams of requests.")  # fmt: skip
@click.option("--items", type=COUNTS,
              help="Items that a cache has at most.  [default: 200,2000; of a trace, 1 % and 10 % "
              "of its keys]")  # fmt: skip
@click.option("--requests", type=click.IntRange(1),
              help="Requests of a stream.  [default: 200000; of a trace, all]")  # fmt: skip
@click.option("--trace", "traces", multiple=True,
              type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
              help="Requests of a file instead: CSV or oracleGeneral, perhaps compressed by gzip "
              "or zstd; may be repeated.")  # fmt: skip
@click.option("--columns", default="", metavar="NAME,NAME,...",
              help="Columns of a CSV file that does not name them: key, perhaps size.")  # fmt: skip
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
    items: tuple[int, ...] | None,
    requests: int | None,
    traces: tuple[pathlib.Path, ...],
    columns: str,
    seed: int,
    speed: bool,
    names: tuple[str, ...],
    processes: tuple[int, ...],
    rounds: int,
    seconds_per_cell: float,
    records: int,
    as_json: bool,
) -> None:
    """Hit ratios of the cache's policies, beside exact ones and those of other packages.

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
    if items and min(items) < 1:
        raise click.UsageError("a cache has at least one item")
    if traces:
        named = tuple(filter(None, columns.lower().split(",")))
        asked = [read(path, named, requests) for path in traces]
    else:
        count = requests or 200_000
        asked = [Requests(name, hit_ratios.stream(name, count, seed)) for name in streams]
    found: list[hit_ratios.Ratio] = []
    for one in asked:
        different = len(set(one.keys))
        sizes = items or ((max(1, different // 100), different // 10 or 1) if traces else ITEMS)
        found += hit_ratios.run([one], tuple(dict.fromkeys(sizes)))
    counts = {one.name: len(one.keys) for one in asked}
    if as_json:
        ratios = [ratio._asdict() for ratio in found]
        print_json({"machine": facts(), "requests": counts, "seed": seed, "ratios": ratios})
        return
    _print_ratios("hits in 100 requests", found, counts, "ratio")
    weighed = {one.name for one in asked if one.sizes is not None}
    if weighed:
        of_sizes = [ratio for ratio in found if ratio.stream in weighed]
        _print_ratios("bytes of hits in 100 bytes of requests", of_sizes, counts, "byte_ratio")


def _print_ratios(
    title: str, found: list[hit_ratios.Ratio], counts: dict[str, int], field: str
) -> None:
    places = list(dict.fromkeys((ratio.stream, ratio.items) for ratio in found))
    by = {((ratio.stream, ratio.items), ratio.policy): getattr(ratio, field) for ratio in found}
    shown = table(title, "policy")
    for name, items in places:
        heading = plain(name).append(f"\n{counts[name]:,} requests\n{items:,} items")
        shown.add_column(heading, justify="right")
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
