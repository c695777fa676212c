"""`limpet report`: what a drill or a benchmark has printed as JSON, as one page of HTML.

The page has all that it needs in itself: it opens without a network, and no script runs in it. Its
charts are SVG. It knows no command's report by name: each part of the JSON is shown by its shape.

    an object                        a table of its numbers and texts, then its parts
    an object of numbers alone       a table, and a chart of them
    an object of equal objects       a table with a row for each
    a list of objects                a table, and charts of its numbers: lines by the first column
                                     if there is no text in it, else bars, named by its texts
    a list of numbers                a chart of them, in their order

Numbers that are all the same have no chart.
"""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import click

import limpet
from limpet.bench.cli.options import check_files, leaving_on_sigterm
from limpet.bench.peers.machine import facts

LIMPET: Final = (sys.executable, "-m", "limpet")
CLEAN_UP_S: Final = 10
"""A command that a Ctrl-C ends has gone after so long."""
BARS_MAX: Final = 60
"""Rows of a chart of bars, at most: more are in the table only."""
CHARTS_MAX: Final = 4
"""Charts, or lines, of one table."""
WIDTH, ROW, NAMES, HEIGHT = 720, 20, 260, 200
VERDICTS: Final = {"True": "everything held", "False": "something did not hold"}
GIVEN: Final = ("parameters", "machine", "mix")
"""A value that was not measured has no chart."""
NUMERIC: Final = ' class="n"'
NONE: Final = "-"
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6b7b; --line: #d5dde5; --bad: #b3261e;
  --paper: #fff; --c0: #2a6f97; --c1: #c9661e; --c2: #4d7c3a; --c3: #7a4d9c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf0; --soft: #9fb0c0; --line: #36434f;
  --paper: #14191f; --bad: #ff8a80; --c0: #6db3dc; --c1: #f0a060; --c2: #93c47d; --c3: #c39be0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
section section { border-left: 3px solid var(--line); padding-left: 1rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0; text-align: left;
  vertical-align: top; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
svg { width: 100%; min-width: 34rem; height: auto; display: block; margin: .5rem 0 1rem; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } code { font-size: .95em; }
"""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--of", "saved", type=click.File("rb"), metavar="RESULT.json",
              help="What a command with --json has printed; - is stdin. Then COMMAND is only "
                   "named.")  # fmt: skip
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path),
                metavar="FILE.html")  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def report(saved: Any, file: Path, command: tuple[str, ...]) -> None:
    """Run a drill or benchmark, and write a page about it.

    `limpet report page.html drill race --seconds 10` runs `limpet drill race --seconds 10 --json`.
    The page has its results as tables and charts, the command, the seed, and where it ran. It is
    one file, which opens without a network. The exit status is that of the command.
    """
    if not (saved or command):
        raise click.UsageError("say which command to run, such as drill race, or --of RESULT.json")
    check_files("FILE.html", None, file)
    status = None
    if saved:
        output = saved.read()
    else:
        output, status = _run([*command, *(["--json"] if "--json" not in command else [])])
    try:
        data = _loaded(output)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(
            f"{'limpet ' + shlex.join(command) if command else saved.name} has printed no JSON"
        ) from error
    part = file.with_name(f"{file.name}.part")
    part.write_text(page(data, command, status), encoding="utf-8")
    part.replace(file)
    click.echo(f"{file}: {file.stat().st_size:,} bytes", err=True)
    if status:
        click.get_current_context().exit(status if status > 0 else 128 - status)


def _run(words: Sequence[str]) -> tuple[bytes, int]:
    """The output of a limpet command, and its exit status.

    When this process is ended, the command is not killed: it has pools to remove first. A Ctrl-C
    comes to both; a signal that came to this process only is passed on as a SIGTERM.
    """
    with leaving_on_sigterm(), subprocess.Popen([*LIMPET, *words], stdout=subprocess.PIPE) as child:
        try:
            output, _ = child.communicate()
        except BaseException as error:
            try:
                child.wait(CLEAN_UP_S if isinstance(error, KeyboardInterrupt) else 0)
            except subprocess.TimeoutExpired:
                child.terminate()
                child.wait()
            raise
    return output, child.returncode


def _loaded(output: bytes) -> Any:
    """A JSON document, or a list of those that are there, one a line."""
    try:
        return json.loads(output)
    except ValueError:
        found = [json.loads(line) for line in output.splitlines() if line.strip()]
        if not found:
            raise
        return found


# ---- the page ------------------------------------------------------------------------------------


def page(data: Any, command: Sequence[str] = (), status: int | None = None) -> str:
    """A page about what a command has printed, and its exit status, if that is known."""
    named = shlex.join(["limpet", *command]) if command else ""
    top = data if isinstance(data, dict) else {}
    about = {
        "command": named,
        "exit status": status,
        "result": VERDICTS.get(str(top.get("ok"))),
        "seed": _seed(data),
        "limpet": limpet.__version__,
        **({} if "machine" in top else facts()),
        "page made": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
    }
    title = escape(named or "limpet")
    body = "".join(_shown("results", data)) if data not in ({}, []) else "<p>no results</p>"
    known = {name: value for name, value in about.items() if value not in (None, "")}
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>"
        f"<h1><code>{title}</code></h1>{_pairs(known)}{body}</body></html>\n"
    )


def _seed(data: Any) -> Any:
    """The first seed in it."""
    if isinstance(data, dict):
        if "seed" in data:
            return data["seed"]
        data = list(data.values())
    if isinstance(data, list):
        return next((seed for one in data if (seed := _seed(one)) is not None), None)
    return None


def _shown(name: str, value: Any) -> Iterator[str]:
    """A part of the result, with its name as a heading."""
    yield f"<section><h2>{escape(_words(name))}</h2>"
    if isinstance(value, dict):
        yield from _object(name, value)
    elif isinstance(value, list):
        yield from _list(name, value)
    else:
        yield f"<p>{_cell(value)}</p>"
    yield "</section>"


def _object(name: str, value: dict[str, Any]) -> Iterator[str]:
    parts = [one for one in value.values() if isinstance(one, (dict, list)) and one]
    if len(parts) == len(value) > 1 and _alike(parts):
        rows = [{"": key, **one} for key, one in value.items()]
        yield from _rows(name, rows)
        return
    plain = {key: one for key, one in value.items() if not isinstance(one, (dict, list)) or not one}
    if plain:
        yield _pairs(plain)
    measured = name not in GIVEN and all(map(_is_number, plain.values()))
    if measured and len(plain) == len(value) and _vary(list(plain.values())):
        yield _bars(_words(name), list(zip(map(_words, plain), plain.values(), strict=True)))
    for key, one in value.items():
        if key not in plain:
            yield from _shown(key, one)


def _list(name: str, value: list[Any]) -> Iterator[str]:
    if value and _alike(value):
        yield from _rows(name, value)
    elif len(value) > 2 and all(map(_is_number, value)):
        if _vary(value):
            yield _lines(_words(name), list(range(len(value))), [(_words(name), value)])
        else:
            yield f"<p>{_cell(value[0])}, {len(value):,} times</p>"
    elif any(isinstance(one, (dict, list)) for one in value):
        for number, one in enumerate(value, 1):
            known = one if isinstance(one, dict) else {}
            yield from _shown(str(known.get("title") or f"{name}, {number}"), one)
    else:
        yield "<ul>" + "".join(f"<li>{_cell(one)}</li>" for one in value) + "</ul>"


def _alike(values: list[Any]) -> bool:
    """Whether these are objects with one set of names, and plain values or short lists."""
    first = values[0]
    return isinstance(first, dict) and all(
        isinstance(one, dict)
        and one.keys() == first.keys()
        and not any(isinstance(part, dict) and part for part in one.values())
        for one in values
    )


def _vary(numbers: Sequence[Any]) -> bool:
    """Whether a chart of these numbers, or None, shows anything: they are not all the same."""
    return len({one for one in numbers if one is not None}) > 1


def _rows(name: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = list(rows[0])
    yield _table(columns, [[row[column] for column in columns] for row in rows])
    numbers = [
        column
        for column in columns
        if all(row[column] is None or _is_number(row[column]) for row in rows)
        and _vary([row[column] for row in rows])
    ]
    texts = [column for column in columns if all(isinstance(row[column], str) for row in rows)]
    if len(rows) < 2 or not numbers:
        return
    if not texts:
        first, *others = numbers
        chosen = others[:CHARTS_MAX]
        at = [row[first] or 0 for row in rows]
        if chosen and at == sorted(at):
            lines = [(_words(column), [row[column] for row in rows]) for column in chosen]
            yield _lines(f"{_words(name)} by {_words(first)}", at, lines)
    elif len(rows) <= BARS_MAX:
        for column in numbers[:CHARTS_MAX]:
            named = [" ".join(row[text] for text in texts if len(row[text]) < 40) for row in rows]
            values = [row[column] for row in rows]
            yield _bars(_words(column), list(zip(named, values, strict=True)))


# ---- tables and charts ---------------------------------------------------------------------------


def _words(name: str) -> str:
    return name.replace("_", " ")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _text(name: str, value: Any) -> str:
    # The digits of a seed are typed again.
    return str(value) if name == "seed" else _cell(value)


def _cell(value: Any) -> str:
    if value is False:
        return '<span class="bad">false</span>'
    if value is None:
        return NONE
    if _is_number(value):
        return _number(value)
    if isinstance(value, (list, dict)):
        return escape(json.dumps(value)) if value else NONE
    return escape(str(value)) if value is not True else "true"


def _pairs(value: dict[str, Any]) -> str:
    rows = (
        f"<tr><th>{escape(_words(key))}</th><td>{_text(key, one)}</td></tr>"
        for key, one in value.items()
    )
    return f'<div class="table"><table>{"".join(rows)}</table></div>'


def _table(columns: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th>{escape(_words(column))}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_place, row))}</tr>" for row in rows)
    whole = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="table"><table>{whole}</table></div>'


def _place(value: Any) -> str:
    return f"<td{NUMERIC if _is_number(value) else ''}>{_cell(value)}</td>"


def _svg(title: str, height: int, inside: str) -> str:
    said = escape(title)
    return (
        f'<div class="table"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">'
        f'<text x="0" y="14" style="font-weight:600">{said}</text>{inside}</svg></div>'
    )


def _bars(title: str, rows: list[tuple[str, Any]]) -> str:
    """A bar for each value, from 0 on; one below 0 is drawn as 0, with its number."""
    most = max((value or 0 for _, value in rows), default=0) or 1
    room = WIDTH - NAMES - 90
    parts = []
    for number, (name, value) in enumerate(rows):
        y = 24 + number * ROW
        length = max(0.0, (value or 0) / most * room)
        parts.append(
            f'<text x="{NAMES - 8}" y="{y + 14}" text-anchor="end">{escape(name[:40])}</text>'
            f'<rect x="{NAMES}" y="{y + 3}" width="{length:.1f}" height="{ROW - 6}" '
            f'fill="var(--c0)"/>'
            f'<text x="{NAMES + length + 6:.1f}" y="{y + 14}">{_cell(value)}</text>'
        )
    return _svg(title, 30 + len(rows) * ROW, "".join(parts))


def _lines(title: str, at: list[float], lines: list[tuple[str, list[float | None]]]) -> str:
    """A line for each series, over `at`, which goes up; the axis of values begins at 0."""
    values = [one for _, line in lines for one in line if one is not None]
    most = max(values, default=0) or 1
    least = min(0, min(values, default=0))
    left, right, top, bottom = 80, WIDTH - 10, 30, HEIGHT
    wide = (at[-1] - at[0]) or 1
    parts = [
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="var(--line)"/>'
        f'<text x="{left - 6}" y="{top + 5}" text-anchor="end">{_number(most)}</text>'
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{_number(least)}</text>'
        f'<text x="{left}" y="{bottom + 16}">{_number(at[0])}</text>'
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{_number(at[-1])}</text>'
    ]
    for number, (name, line) in enumerate(lines):
        points = " ".join(
            f"{left + (x - at[0]) / wide * (right - left):.1f},"
            f"{bottom - (y - least) / (most - least) * (bottom - top):.1f}"
            for x, y in zip(at, line, strict=True)
            if y is not None
        )
        color = f"var(--c{number % CHARTS_MAX})"
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        if len(lines) > 1:
            y = bottom + 36 + number * ROW
            parts.append(
                f'<rect x="{left}" y="{y - 9}" width="14" height="4" fill="{color}"/>'
                f'<text x="{left + 22}" y="{y}">{escape(name)}</text>'
            )
    more = len(lines) * ROW if len(lines) > 1 else 0
    return _svg(title, bottom + 26 + more, "".join(parts))
