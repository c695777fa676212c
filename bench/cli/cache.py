"""`limpet bench cache`."""

from __future__ import annotations

import click

from limpet.bench.cli.options import List
from limpet.bench.figures import hit_ratios
from limpet.bench.peers.machine import facts
from limpet.cli.common import console, json_option, print_json, table


@click.command("cache")
@click.option("--streams", type=List(str), default=",".join(hit_ratios.STREAMS),
              show_default=True, help="Streams of requests.")  # fmt: skip
@click.option("--items", type=List(int), default="200,2000", show_default=True,
              help="Items that a cache has at most.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=200_000, show_default=True,
              help="Requests of a stream.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True)
@json_option
def cache_command(
    streams: tuple[str, ...], items: tuple[int, ...], requests: int, seed: int, as_json: bool
) -> None:
    """Hit ratios of the cache's policies, beside exact ones and those of other packages."""
    if unknown := sorted(set(streams) - set(hit_ratios.STREAMS)):
        raise click.UsageError(
            f"there is no stream {', '.join(unknown)}; there is {', '.join(hit_ratios.STREAMS)}"
        )
    if min(items) < 1:
        raise click.UsageError("a cache has at least one item")
    found = list(hit_ratios.run(streams, items, requests, seed))
    if as_json:
        ratios = [ratio._asdict() for ratio in found]
        print_json({"machine": facts(), "requests": requests, "seed": seed, "ratios": ratios})
        return
    names = tuple(dict.fromkeys(ratio.policy for ratio in found))
    shown = table(
        f"hits in 100 of {requests:,} requests", "stream", "items", *names, right=("items", *names)
    )
    for name, size in dict.fromkeys((ratio.stream, ratio.items) for ratio in found):
        by = {each.policy: each.ratio for each in found if each[:2] == (name, size)}
        shown.add_row(name, f"{size:,}", *(f"{100 * by[policy]:.1f}" for policy in names))
    console().print(shown)
