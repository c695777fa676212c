"""The command line of limpet: `limpet`, or `python -m limpet`."""

from __future__ import annotations

import click

import limpet
from limpet.bench.cli import bench
from limpet.cli.bank import bank
from limpet.cli.cache_drill import cache_drill
from limpet.cli.common import Commands
from limpet.cli.damage import damage
from limpet.cli.demo import demo
from limpet.cli.drill import drill
from limpet.cli.dumps import cache, dump, keys, load
from limpet.cli.full import full
from limpet.cli.matrix import check, matrix
from limpet.cli.pools import create, destroy, fail_node, hosts, inspect, ls, replace_node, watch
from limpet.cli.rack import rack
from limpet.cli.standing import beside, containers_, looks, throttle
from limpet.cli.values import delete, drop, get, put, rename


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(limpet.__version__, prog_name="limpet")
def main() -> None:
    """Crash-tolerant key-value stores in shared memory, for many processes without a server.

    POOL is a URL: shm://NAME (or just NAME), file:///DIR, dax:///dev/dax0.0,/dev/dax1.0
    """


for command in (
    matrix,
    check,
    bank,
    cache_drill,
    full,
    damage,
    throttle,
    beside,
    looks,
    containers_,
):
    drill.add_command(command)
of_pools = (create, ls, inspect, hosts, watch, fail_node, replace_node, destroy)
of_stores = (keys, get, put, delete, drop, rename, dump, load, cache)
for command in (demo, *of_pools, *of_stores, drill, rack, bench):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="limpet")
