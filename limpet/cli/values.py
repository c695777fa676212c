"""`limpet get`, `put`, `delete`, `rename` and `drop`: single keys of a store, by its codec, and
whole stores.

In a store of bytes, KEY and VALUE are text (UTF-8) or, with --hex, bytes in hexadecimal. In a
mapping, which has a codec, they are JSON (forms.py), or text when they are not; of the codec str,
always text.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

import limpet
from limpet.cli.common import hex_option, json_or_text, octets, pool_argument, pool_of
from limpet.cli.forms import form_of, key_bytes, text_of, value_bytes
from limpet.stores.core.codecs import Codec, codec_of_keys
from limpet.stores.registry import CACHES

store_option = click.option("--store", "name", default="default", show_default=True,
                            help="Name of the store.")  # fmt: skip
RAW = "bytes"
"""The codec of a store of bytes."""
KIND = "race"
"""The kind of a store that `put` makes, unless another one is asked for."""
TEXT = "str"
"""The codec of a store of text."""


@contextlib.contextmanager
def existing(url: str, name: str) -> Iterator[Any]:
    """The store of this name as a mapping, which must be there; also a cache."""
    with _there(url, name) as (pool, there):
        if there["kind"] in CACHES:
            yield pool.cache(name)
        else:
            yield pool.dict(name, store=there["kind"], codec=there["codec"])


@contextlib.contextmanager
def bare(url: str, name: str) -> Iterator[tuple[Any, str]]:
    """The store of this name, of bytes, and the name of its codec, of which nothing is imported."""
    with _there(url, name) as (pool, there):
        yield pool.bare(there["kind"], name)


@contextlib.contextmanager
def _there(url: str, name: str) -> Iterator[tuple[limpet.Pool, dict[str, Any]]]:
    """The pool, and its row of the store of this name. StoreError: there is none."""
    with pool_of(url) as pool:
        there = {entry["name"]: entry for entry in pool.stores()}.get(name)
        if there is None:
            raise limpet.StoreError(
                f"{url} has no store {name!r}; `limpet inspect` lists them, `limpet put` makes one"
            )
        yield pool, there


@contextlib.contextmanager
def dropped_if_empty(pool: limpet.Pool, name: str, store: Any, is_new: bool) -> Iterator[Any]:
    """A store, which is dropped after an error if it was made for this and nothing is in it."""
    try:
        yield store
    except BaseException:
        if is_new and next(iter(store), None) is None:
            pool.drop(name)
        raise


def read(text: str, codec: str, as_hex: bool) -> Any:
    """A key or value from the command line: bytes or text, if the codec is of these, or a form."""
    if codec == RAW:
        return octets(text, as_hex)
    if codec == TEXT and not as_hex:
        return text
    if as_hex:
        raise click.UsageError(f"--hex is for stores of bytes; this one has the codec {codec!r}")
    return json_or_text(text)


def key_named(text: str, codec: Codec, as_hex: bool = False) -> bytes:
    """The store's bytes of a key from the command line."""
    return key_bytes(read(text, codec.base, as_hex), codec)


def shown(value: Any) -> str:
    """A value as JSON, or as Python shows it if it has no form in JSON."""
    try:
        return text_of(form_of(value))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


@click.command()
@pool_argument
@click.argument("key")
@store_option
@hex_option
def get(url: str, key: str, name: str, as_hex: bool) -> None:
    """Write the value of KEY to stdout. Exit status 1 without one.

    Bytes are written as they are, or in hexadecimal; decoded values as JSON, or as Python shows
    them. Reading a pickle runs the code that its writer put there. KEY is as `limpet keys` shows
    it, of a store of bytes with --hex; after -- if it begins with -.
    """
    with existing(url, name) as mapping:
        codec = mapping.codec
        data = mapping.store.get(key_named(key, codec, as_hex))
    if data is None:
        raise click.ClickException(f"{url}: store {name!r} has no key {key!r}")
    value = codec.decode(data)
    if codec.base != RAW:
        click.echo(shown(value))
    elif as_hex:
        click.echo(value.hex())
    else:
        sys.stdout.buffer.write(value)


@click.command()
@pool_argument
@click.argument("key")
@click.argument("value", default="-")
@store_option
@click.option("--kind", help="Kind, if the store is to be made.  [default: race]")
@click.option("--codec", help="Codec, if the store is to be made.  [default: bytes]")
@hex_option
def put(
    url: str,
    key: str,
    value: str,
    name: str,
    kind: str | None,
    codec: str | None,
    as_hex: bool,
) -> None:
    """Set KEY to VALUE, or to stdin if VALUE is - or missing. Makes the store if needed.

    A store that is there has to be of the --kind and --codec that are given. No store is made for
    a key or a value that it cannot take.
    """
    with pool_of(url) as pool:
        there = {entry["name"]: entry for entry in pool.stores()}.get(name)

        def opened(codec: str | None) -> Any:
            made = there or {"kind": KIND, "codec": None}
            return pool.dict(name, store=kind or made["kind"], codec=codec or made["codec"])

        mapping = opened(codec) if there else None
        used = Codec.named(codec or RAW) if mapping is None else mapping.codec
        base = used.base
        given: Any
        if value != "-":
            given = read(value, base, as_hex)
        elif base == RAW and not as_hex:
            given = sys.stdin.buffer.read()
        else:
            given = read(sys.stdin.buffer.read().decode(errors="replace"), base, as_hex)
        pair = key_named(key, used, as_hex), value_bytes(given, used)
        is_new = mapping is None
        if mapping is None:
            mapping = opened(used.name)
        with dropped_if_empty(pool, name, mapping.store, is_new) as store:
            store.put(*pair)


@click.command()
@pool_argument
@click.argument("key")
@store_option
@hex_option
def delete(url: str, key: str, name: str, as_hex: bool) -> None:
    """Delete KEY, written as for `limpet get`; exit status 1 if it is not there."""
    with bare(url, name) as (store, codec):
        try:
            store.delete(key_named(key, codec_of_keys(codec), as_hex))
        except KeyError as error:
            raise click.ClickException(f"{url}: store {name!r} has no key {key!r}") from error


@click.command()
@pool_argument
@click.argument("old")
@click.argument("new")
def rename(url: str, old: str, new: str) -> None:
    """Give the store OLD of POOL the name NEW, in one step, also while other clients use it."""
    with pool_of(url) as pool:
        pool.rename(old, new)


@click.command()
@pool_argument
@click.argument("name")
def drop(url: str, name: str) -> None:
    """Give back the store NAME of POOL, with all its memory, also while other clients use it."""
    with pool_of(url) as pool:
        pool.drop(name)
