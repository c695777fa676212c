"""`limpet get`, `put` and `delete`: single keys of a store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

import limpet
from limpet.cli.common import hex_option, octets, url_argument

store_option = click.option("--store", "name", default="default", show_default=True,
                            help="Name of the store.")  # fmt: skip


@contextlib.contextmanager
def _existing(url: str, name: str) -> Iterator[Any]:
    """The store of this name, which must be there."""
    with limpet.open(url) as pool:
        for entry in pool.stores():
            if entry["name"] == name:
                yield pool.store(entry["kind"], name=name)
                return
        raise limpet.StoreError(
            f"{url} has no store {name!r}; `limpet inspect` lists them, `limpet put` makes one"
        )


@click.command()
@url_argument
@click.argument("key")
@store_option
@hex_option
def get(url: str, key: str, name: str, as_hex: bool) -> None:
    """Write the value of KEY to stdout, as it is or in hexadecimal. Exit status 1 without one."""
    with _existing(url, name) as store:
        value = store.get(octets(key, as_hex))
    if value is None:
        raise click.ClickException(f"{url}: store {name!r} has no key {key!r}")
    if as_hex:
        click.echo(value.hex())
    else:
        sys.stdout.buffer.write(value)


@click.command()
@url_argument
@click.argument("key")
@click.argument("value", default="-")
@store_option
@click.option("--kind", default="race", show_default=True, help="Kind, if the store is to be made.")
@hex_option
def put(url: str, key: str, value: str, name: str, kind: str, as_hex: bool) -> None:
    """Set KEY to VALUE, or to stdin if VALUE is - or left out. Makes the store if needed."""
    if value == "-":
        data = sys.stdin.buffer.read()
        if as_hex:
            data = octets(data.decode("ascii", errors="replace"), as_hex)
    else:
        data = octets(value, as_hex)
    with limpet.open(url) as pool:
        kinds = {entry["name"]: entry["kind"] for entry in pool.stores()}
        pool.store(kinds.get(name, kind), name=name).put(octets(key, as_hex), data)


@click.command()
@url_argument
@click.argument("key")
@store_option
@hex_option
def delete(url: str, key: str, name: str, as_hex: bool) -> None:
    """Delete KEY; exit status 1 if it is not there."""
    with _existing(url, name) as store:
        try:
            store.delete(octets(key, as_hex))
        except KeyError as error:
            raise click.ClickException(f"{url}: store {name!r} has no key {key!r}") from error
