"""`limpet man`: the manual page, of the commands' own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

import limpet

EXIT_STATUS = (
    "0: the command did everything, and every check held. 1: it did not; one line on stderr gives "
    "the reason. 2: the command line makes no sense. 128 + n: it was ended by signal n."
)


@click.command()
def man() -> None:
    """Write the manual page to stdout, as troff.

    `limpet man > ~/.local/share/man/man1/limpet.1` installs it; then `man limpet` shows it.
    """
    command = click.get_current_context().find_root().command
    # however the program was started
    click.echo("\n".join(_lines(click.Context(command, info_name="limpet"))))


def _lines(top: click.Context) -> Iterator[str]:
    yield f'.TH LIMPET 1 "" "limpet {limpet.__version__}" "limpet"'
    yield from (".ad l", ".nh")
    yield from (".SH NAME", "limpet \\- crash-tolerant stores in shared memory, without a server")
    yield from (".SH SYNOPSIS", ".B limpet", _escaped("COMMAND [OPTIONS] [ARGUMENTS]"))
    yield ".SH DESCRIPTION"
    yield from _help(top.command)
    yield ".SH COMMANDS"
    yield from _commands(top)
    yield from (".SH EXIT STATUS", _escaped(EXIT_STATUS))


def _commands(context: click.Context) -> Iterator[str]:
    """Each command of a group, and those of the groups among them."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield f'.SS "{_escaped(inner.command_path)}"'
        yield f".B {_escaped(inner.command_path)}"
        yield _escaped(" ".join(command.collect_usage_pieces(inner)))
        yield ".PP"
        yield from _help(command)
        for parameter in command.get_params(inner):
            record = parameter.get_help_record(inner)
            if record is not None and "--help" not in parameter.opts:
                yield from (".TP", f".B {_escaped(record[0])}", _escaped(record[1]) or "\\&")
        if isinstance(command, click.Group):
            yield from _commands(inner)


def _help(command: click.Command) -> Iterator[str]:
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        as_it_is = paragraph.startswith("\b")
        lines = [_escaped(line) for line in paragraph.lstrip("\b\n").splitlines()]
        yield from (".nf", *lines, ".fi") if as_it_is else lines


def _escaped(text: str) -> str:
    """Text for troff, on one line: no character of it is a command."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    text = re.sub(r"([,|])(?=\S)", r"\1\\:", text)  # where a long list may be cut
    return f"\\&{text}" if text[:1] in (".", "'") else text
