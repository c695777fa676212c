"""`limpet keys`, `dump`, `load` and `cache`: whole stores, and caches, from the command line.

A dump is JSON Lines. The first line describes the store; each other line is an entry:

    {"limpet": 1, "store": "config", "kind": "race", "codec": "pickle"}
    {"key": "80054b012e", "value": "80054b022e"}

Keys and values are the store's bytes, in hexadecimal. So a dump decodes nothing, and nothing that a
pickle brings is run; `load` writes the same bytes into another pool, kind or version. Each entry is
read at one moment; entries that change during a dump are as of different moments.

With `--decoded` the first line has `"decoded": true`, and keys and values are the objects that the
codec makes of the bytes, as JSON that keeps their types (forms.py); `load` encodes them again. They
can be read and edited; decoding runs what a pickle brings.

Of a cache, the first line has `"parameters"`: `max_bytes`, `max_items`, `ttl_ms` and `policy`, with
which `load` makes it again. An entry may have four fields more: `deadline_ms`, since 1970;
`slide_ms`, for how long a read puts it off; `stale_ms`; and `tags`, by their numbers. Deadlines are
absolute, so that a dump that is loaded later brings nothing back that has expired meanwhile.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import click

import limpet
from limpet.cli.common import json_option, pool_argument, pool_of, print_json, print_line
from limpet.cli.forms import key_bytes, key_form, text_of, value_bytes, value_form
from limpet.cli.values import (
    RAW,
    bare,
    dropped_if_empty,
    key_named,
    read,
    shown,
    store_option,
)
from limpet.shm.errors import ParameterError
from limpet.shm.parameters import parse_size
from limpet.stores.cache.validity import Terms
from limpet.stores.core.codecs import Codec, codec_of_keys, name_of
from limpet.stores.core.status import PUT
from limpet.stores.dumps import FORMAT, fields_of, head_of, read_head, terms_of
from limpet.stores.registry import CACHES


@click.command()
@pool_argument
@store_option
@json_option
def keys(url: str, name: str, as_json: bool) -> None:
    """Write the keys of a store to stdout, one a line, as `limpet get` takes them.

    Keys of a store of bytes are in hexadecimal, for `get --hex`. Of a mapping they are text, or
    JSON where text would be read as something else, or is not printable. With --json all are JSON.
    Nothing that a pickle brings is run.
    """
    with bare(url, name) as (store, named):
        codec = codec_of_keys(named)
        for key in _counted(store):
            if codec.base == RAW:
                click.echo(json.dumps(key.hex()) if as_json else key.hex())
            else:
                form = key_form(key, codec)
                click.echo(form if not as_json and _is_bare(form, codec) else text_of(form))


def _is_bare(form: Any, codec: Codec) -> bool:
    """Whether a key is text that `read` takes as it is."""
    return isinstance(form, str) and form.isprintable() and read(form, codec.base, False) == form


def _counted(store: Any) -> Iterator[bytes]:
    """The keys of a store; of a cache, those that count."""
    return (key for key in store if store.kind not in CACHES or key in store)


@click.command()
@pool_argument
@store_option
@click.option("--decoded", is_flag=True,
              help="Keys and values decoded by the store's codec, as JSON.")  # fmt: skip
def dump(url: str, name: str, decoded: bool) -> None:
    """Write all entries of a store to stdout, as JSON Lines that `limpet load` reads.

    The pool may be in use: each entry is read at one moment, but not all at the same one. Of a
    cache, the entries that count are written, with their deadlines and tags.
    """
    with bare(url, name) as (store, named):
        codec = Codec.named(named) if decoded else None
        head = head_of(store, name, named)
        print_line({**head, **({"decoded": True} if decoded else {})})
        for key in store:
            found = fields_of(store, key)
            if found is None:  # it was deleted meanwhile, or has expired
                continue
            value = found.pop("value")
            if codec is not None:
                forms = {"key": key_form(key, codec), "value": value_form(value, codec)}
            else:
                forms = {"key": key.hex(), "value": value.hex()}
            click.echo(text_of({**forms, **found}))


@click.command()
@pool_argument
@click.argument("file", type=click.File("r"), default="-")
@click.option("--store", "name", help="Name of the store.  [default: that of the dump]")
@click.option("--kind", help="Kind, if the store is to be made.  [default: that of the dump]")
@click.option("--codec", help="That of the dump, if it names a module: loading imports it.")
@click.option("--max-bytes", help="Of a cache that is to be made.  [default: that of the dump]")
@click.option("--max-items", type=int,
              help="Of a cache that is to be made.  [default: that of the dump]")  # fmt: skip
@json_option
def load(
    url: str,
    file: IO[str],
    name: str | None,
    kind: str | None,
    codec: str | None,
    max_bytes: str | None,
    max_items: int | None,
    as_json: bool,
) -> None:
    """Put the entries of a dump in FILE, or in stdin, into a store of a pool; make it if needed.

    Entries that are there already are replaced. The codec is that of the dump; if it names a
    module, which every process imports that opens the store, it must be given, too. A cache keeps
    their deadlines and tags, and takes no entry that has expired since; other kinds take all, and
    forget both. Stops at the first line that is wrong, with its number; the entries before it are
    loaded. If there are none, the store that was made for them is dropped again.
    """
    lines = enumerate(file, 1)
    with pool_of(url) as pool:
        head = _head(lines)
        name = name or head["store"]
        there = {entry["name"]: entry for entry in pool.stores()}.get(name)
        kind = kind or (there["kind"] if there else head["kind"])
        if there and there["codec"] != head["codec"]:
            raise click.ClickException(
                f"{url}: store {name!r} has the codec {there['codec']!r}, and the dump "
                f"{head['codec']!r}; give another --store"
            )
        if codec not in (None, head["codec"]) or (
            codec is None and ":" in head["codec"] and not there
        ):
            raise click.ClickException(
                f"the codec of the dump is {head['codec']!r}; if you trust it, give it by --codec: "
                "each process that opens the store imports the module that it names"
            )
        bounds = {
            "max_bytes": None if max_bytes is None else parse_size(max_bytes),
            "max_items": max_items,
        }
        given = {field: bound for field, bound in bounds.items() if bound is not None}
        store = _target(pool, name, kind, head, there is not None, given)
        with dropped_if_empty(pool, name, store, there is None):
            decoder = Codec.named(head["codec"]) if head["decoded"] else None
            count, expired = _load(store, lines, decoder)
    if as_json:
        counts = {"entries": count, "expired": expired}
        print_json({"store": name, "kind": kind, "codec": head["codec"], **counts})
    else:
        left_out = f", and left out {expired} that have expired" if expired else ""
        click.echo(f"loaded {count} entries into store {name!r} of {url}{left_out}")


def _target(
    pool: limpet.Pool,
    name: str,
    kind: str,
    head: dict[str, Any],
    is_there: bool,
    given: dict[str, Any],
) -> Any:
    """The store for a dump; a cache is made with the parameters of the dump, and those given."""
    if not is_there:
        name_of(head["codec"])  # ParameterError: there is none
    if kind not in CACHES:
        if given:
            raise click.UsageError(f"--max-bytes and --max-items are of caches; {name!r} is {kind}")
        return pool.bare(kind, name, head["codec"])[0]
    parameters = given if is_there else {**head["parameters"], **given}
    parameters = {field: one for field, one in parameters.items() if one is not None}
    try:
        if "max_bytes" in parameters:
            parameters["max_bytes"] = parse_size(parameters["max_bytes"])
        return pool.bare(kind, name, head["codec"], **parameters)[0]
    except ParameterError as error:
        raise click.UsageError(
            f"{pool.url}: cache {name!r} cannot be made: {error}; --max-bytes and --max-items give "
            "it other bounds than the dump"
        ) from error


def _load(store: Any, lines: Iterator[tuple[int, str]], codec: Codec | None) -> tuple[int, int]:
    """Put the entries into a store; how many were, and how many have expired. `codec`: that of a
    decoded dump."""
    count = expired = 0
    for number, line in lines:
        key, value, terms = _entry(line, number, codec)
        try:
            if store.kind not in CACHES:
                store.put(key, value)
            elif terms is None:
                expired += 1
                continue
            else:
                store.write(key, value, PUT, terms)
        except limpet.LimpetError as error:
            kind = type(error).__name__
            raise click.ClickException(f"line {number}: {kind}: {error}{_rest(number)}") from error
        count += 1
    return count, expired


def _head(lines: Iterator[tuple[int, str]]) -> dict[str, Any]:
    try:
        return read_head(next(lines, (1, ""))[1])
    except ParameterError as error:
        raise click.ClickException(
            f"line 1 does not begin a dump of format {FORMAT}; `limpet dump` writes one"
        ) from error


def _entry(line: str, number: int, codec: Codec | None) -> tuple[bytes, bytes, Terms | None]:
    """Key, value and, for a cache, the terms of an entry; None: it has expired.

    `codec`: that of a decoded dump.
    """
    try:
        entry = json.loads(line)
        key, value = entry["key"], entry["value"]
        if codec is None:
            return bytes.fromhex(key), bytes.fromhex(value), terms_of(entry)
        return key_bytes(key, codec), value_bytes(value, codec), terms_of(entry)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise click.ClickException(
            f"line {number} is no entry of a dump: {error}{_rest(number)}"
        ) from error


def _rest(number: int) -> str:
    return "; the entries before it are loaded" if number > 2 else ""


# ---- caches --------------------------------------------------------------------------------------


@click.group("cache")
@pool_argument
@click.argument("name")
@click.pass_context
def cache(context: click.Context, url: str, name: str) -> None:
    """Look at the cache NAME of POOL: its counts, and single entries."""
    context.obj = Where(url, name)


class Where(NamedTuple):
    """The cache that a command is about."""

    url: str
    name: str


@contextlib.contextmanager
def _opened(where: Where) -> Iterator[limpet.Cache[Any, Any]]:
    url, name = where
    with pool_of(url) as pool:
        if not any(one["name"] == name and one["kind"] in CACHES for one in pool.stores()):
            raise limpet.StoreError(
                f"{url} has no cache {name!r}; `limpet inspect` lists the stores"
            )
        yield pool.cache(name)


@cache.command("stats")
@json_option
@click.pass_obj
def cache_stats(where: Where, as_json: bool) -> None:
    """Show the counts of all processes, living and dead, and the size."""
    with _opened(where) as opened:
        stats = opened.stats()
    if as_json:
        print_json(stats)
        return
    for what, count in stats.items():
        click.echo(f"{what:16} {count:>14,}")


@cache.command("resize")
@click.option("--max-bytes", metavar="SIZE", help="Bytes of all entries, or text such as 64MiB.")
@click.option("--max-items", type=int, help="The number of entries.")
@click.pass_obj
def cache_resize(where: Where, max_bytes: str | None, max_items: int | None) -> None:
    """Give the cache other bounds, while processes use it; to shrink it evicts."""
    if max_bytes is None and max_items is None:
        raise click.UsageError("give --max-bytes, or --max-items, or both")
    with _opened(where) as opened:
        opened.resize(max_bytes=max_bytes, max_items=max_items)
        stats = opened.stats()
    click.echo(
        f"{where.name}: {stats['items']:,} of {stats['max_items']:,} items, "
        f"{stats['bytes']:,} of {stats['max_bytes']:,} bytes"
    )


@cache.command("clear")
@click.pass_obj
def cache_clear(where: Where) -> None:
    """Invalidate all entries, and free their memory."""
    with _opened(where) as opened:
        opened.clear()
        click.echo(f"freed {opened.expire()} entries")


@cache.command("get")
@click.argument("key")
@click.pass_obj
def cache_get(where: Where, key: str) -> None:
    """Write the value of KEY to stdout, as JSON or as Python shows it. Exit status 1 without one.

    Bytes are written as text. Reading a pickle runs the code that its writer put there.
    """
    with _opened(where) as opened:
        data = opened.store.get(key_named(key, opened.codec))
    if data is None:
        raise click.ClickException(f"{where.url}: cache {where.name!r} has no key {key!r}")
    value = opened.codec.decode(data)
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else shown(value)
    click.echo(text)


@cache.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--ttl", type=click.FloatRange(0), metavar="SECONDS",
              help="How long it lives; 0: until evicted.  [default: the cache's]")  # fmt: skip
@click.pass_obj
def cache_set(where: Where, key: str, value: str, ttl: float | None) -> None:
    """Set KEY to VALUE: JSON, or text when it is not; in a cache of bytes, text."""
    with _opened(where) as opened:
        data = value_bytes(read(value, opened.codec.base, False), opened.codec)
        terms = opened.terms(ttl, False, 0, ())
        opened.store.write(key_named(key, opened.codec), data, PUT, terms)
