"""`limpet prune`: removing what killed processes have left in shared memory."""

from __future__ import annotations

import click

import limpet
from limpet.cli.common import PoolUrl, json_option, print_json, size_text


@click.command()
@click.argument("url", type=PoolUrl(), metavar="[POOL]", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def prune(url: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove what killed processes have left: ephemeral pools without a living client, and pools of
    which the process that created or removed them is dead. Those in shared memory, or the one at
    POOL.

    A pool that a process uses stays, and so does one of another user. Of several hosts, a client of
    another one, or of a container, is waited for as long as its lease lasts.
    """
    found = limpet.prune(url or "", dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "pools": found})
        return
    done = "would remove" if dry_run else "removed"
    for row in found:
        click.echo(f"{done} {row['url']}: {row['what']}, {size_text(row['bytes'])}")
    if not found:
        click.echo("nothing to remove")
