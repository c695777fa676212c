"""Shared parts of the commands: arguments, reports, and the exit statuses of errors.

Exit status: 0 the command did everything asked for, and every check held; 1 it did not (one line on
stderr gives the reason); 2 the command line makes no sense; 128 + n ended by signal n.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from importlib import import_module
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

import click

import limpet
from limpet.shm.errors import LimpetError, ParameterError
from limpet.shm.times import LONGEST_S, MS, units_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    # `limpet ls --json` and others need none of it; it would cost them 50 ms.
    from click.shell_completion import CompletionItem
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

LONG: Final = 1000
"""As many characters of a command's help are shown."""
NARROW: Final = 100
"""On a terminal of fewer columns tables have no lines between columns."""
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a file that takes no more."""


class Commands(click.Group):
    """A group whose commands' LimpetErrors become one line on stderr and exit status 1 or 2, and
    Ctrl-C one and 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except ParameterError as error:
            raise click.UsageError(str(error)) from error
        except LimpetError as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error
        except KeyboardInterrupt:
            click.echo("ended by Ctrl-C before it was done", err=True)
            ctx.exit(128 + signal.SIGINT)
        except OSError as error:
            if error.errno not in FULL or error.filename is not None:
                raise
            # What is buffered cannot be written at the end of the process, either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.ClickException(f"stdout cannot be written: {error.strerror}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, with the whole first sentence of each command's help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(LONG)) for name, each in found if each is not None]
            )


class PoolUrl(click.ParamType):
    """A pool's URL; a bare name stands for `shm://NAME`."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if "://" in value else f"shm://{value}"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The pools in shared memory."""
        from click.shell_completion import CompletionItem

        from limpet.shm.backends.inventory import list_pools

        names = [pool["url"].removeprefix("shm://") for pool in list_pools("")]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


_ANY_OWNER: Final = "limpet.any_owner"

url_argument = click.argument("url", type=PoolUrl(), metavar="POOL")
_any_owner_option = click.option(
    "--any-owner", is_flag=True, expose_value=False, help="Even if another user owns the pool.",
    callback=lambda ctx, param, value: ctx.meta.update({_ANY_OWNER: value}),
)  # fmt: skip


def pool_argument(command: Any) -> Any:
    """`url_argument` of a command that uses a pool, by `pool_of`, and `--any-owner`."""
    return url_argument(_any_owner_option(command))


def any_owner() -> bool:
    """Whether the running command may use a pool that another user owns."""
    return bool(click.get_current_context().meta.get(_ANY_OWNER))


def pool_of(url: str) -> limpet.Pool:
    """The pool that the running command opens."""
    return limpet.open(url, any_owner=any_owner())


json_option = click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")


def in_ms(ctx: click.Context, param: click.Parameter, seconds: float) -> int:
    """The callback of an option in seconds that a command takes in ms."""
    return units_of(param.opts[0], seconds, MS, LONGEST_S * MS)


hex_option = click.option("--hex", "as_hex", is_flag=True, help="Keys and values are hexadecimal.")


nodes_option = click.option(
    "--nodes", type=click.IntRange(0, 16), default=0,
    help="Memory nodes of the pool.  [default: as many as suit the kind]",
)  # fmt: skip


def json_or_text(text: str) -> Any:
    """The JSON value of `text`, or `text` itself when it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class Assignment(click.ParamType):
    """NAME=VALUE; the value is JSON, or text when it is not."""

    name = "name=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, object]:
        if isinstance(value, tuple):
            return value
        name, separator, text = str(value).partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, json_or_text(text)


parameter_option = click.option(
    "--parameter", "parameters", type=Assignment(), multiple=True,
    callback=lambda ctx, param, value: dict(value),
    help="A parameter of the store, NAME=VALUE; may be repeated.",
)  # fmt: skip


def simulation(module: str) -> Any:
    """A module that needs simulated clients, which are an extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "greenlet":
            raise
        raise click.ClickException(str(error)) from error


def octets(text: str, as_hex: bool) -> bytes:
    """The bytes that an argument stands for: UTF-8, or hexadecimal."""
    if not as_hex:
        return text.encode(errors="surrogateescape")
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is not hexadecimal: {error}") from error


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(data, indent=2, default=_plain))


def print_line(data: Any) -> None:
    """One JSON document on a line of its own, at once."""
    click.echo(json.dumps(data, default=_plain))
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")


def console() -> Console:
    """Stdout; as wide as the text needs when it is no terminal."""
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; the columns in `right` are aligned to the right."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold")
    if sys.stdout.isatty() and get_terminal_size().columns < NARROW:
        from rich import box

        made.box, made.padding, made.show_edge = box.SIMPLE_HEAD, (0, 0, 0, 0), False
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left")
    return made


def plain(text: str) -> Text:
    """A name given by a user, safe for the terminal: no markup, no control characters."""
    from rich.text import Text

    shown = [one if one.isprintable() else ascii(one)[1:-1] for one in text]
    return Text("".join(shown))


def size_text(size: float) -> str:
    """Bytes for people: 1536 is `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def count_text(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {what}{'s' * (count != 1)}"


def nodes_text(numbers: Iterable[int]) -> str:
    """`node 0`, or `nodes 0, 1`."""
    found = sorted(numbers)
    return f"node{'s' * (len(found) != 1)} {', '.join(map(str, found))}"


def time_text(ns: float | None) -> str:
    """A latency for people: three digits and a unit."""
    if ns is None:
        return "-"
    for unit in ("ns", "us", "ms", "s"):
        if ns < 1000 or unit == "s":
            break
        ns /= 1000
    return f"{ns:.3g} {unit}" if ns < 100 else f"{ns:.0f} {unit}"
