"""`limpet snapshot` and `limpet restore`: a whole pool as a file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from limpet.cli.common import (
    PoolUrl,
    count_text,
    json_option,
    pool_argument,
    pool_of,
    print_json,
    size_text,
)
from limpet.stores.pool import Pool
from limpet.stores.snapshots import Snapshot, restored


@click.command()
@pool_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def snapshot(url: str, file: Path, as_json: bool) -> None:
    """Write all stores, mappings, caches and channels of POOL to FILE, for `limpet restore`.

    The pool may be in use: each key is as it was at one moment, but not all at the same one. Jobs
    that are held wait again. FILE is the old one or the new one at each moment, and only its owner
    may read it.
    """
    with pool_of(url) as pool:
        try:
            found = pool.snapshot(file)
        except OSError as error:
            raise click.ClickException(f"{file} cannot be written: {error.strerror}") from error
    if as_json:
        print_json(found._asdict())
    else:
        _show(found, f"wrote {url} to {file}")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("url", type=PoolUrl(), metavar="POOL")
@click.option("--nodes", type=int, help="Memory nodes.  [default: as in the snapshot]")
@click.option("--node-size", help="Size of a node.  [default: as in the snapshot]")
@click.option("--clients", type=int, help="Slots for clients.  [default: as in the snapshot]")
@json_option
def restore(
    file: Path,
    url: str,
    nodes: int | None,
    node_size: str | None,
    clients: int | None,
    as_json: bool,
) -> None:
    """Make POOL from the snapshot in FILE. No process can open it before it is whole.

    A restore that is killed leaves a half-created pool, for `limpet prune`. Channels look up their
    codecs, which may import modules: restore no file that you do not trust.
    """
    given: dict[str, Any] = {"nodes": nodes, "node_size": node_size, "clients": clients}
    pool, found = restored(Pool, file, url, given)
    nodes, size = pool.view.nodes, pool.view.nodes * pool.parameters.node_size
    pool.close()
    if as_json:
        print_json({**found._asdict(), "nodes": nodes, "bytes": size})
    else:
        made = f"{count_text(nodes, 'node')}, {size_text(size)} in all"
        _show(found, f"made {url} from {file}, {made}")


def _show(found: Snapshot, done: str) -> None:
    click.echo(
        f"{done}: {found.stores} stores, {found.channels} channels, "
        f"{size_text(found.size)} of keys and values"
    )
    if found.left_out:
        click.echo(f"left out channels of other kinds: {', '.join(found.left_out)}")
    if found.expired:
        click.echo(f"left out {found.expired} entries of caches that have expired")
