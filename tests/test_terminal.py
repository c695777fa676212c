"""The commands on a terminal: tables fit, colours go away, help is whole, words are completed."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from limpet.__main__ import main
from limpet.cli.live_view import progress_table
from limpet.fault.inject.counters import Snapshot
from limpet.fault.inject.supervisor import Progress

pytestmark = pytest.mark.either_build("commands are not compiled")


def on_a_terminal(*words: str, columns: int = 80, **environment: str) -> str:
    """What a command prints on a terminal of so many columns."""
    parent, child = pty.openpty()
    variables = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet", *words], stdin=child, stdout=child, stderr=child,
        env=variables,
    )  # fmt: skip
    os.close(child)
    found = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(parent, 65536):
            found += data
    os.close(parent)
    process.wait()
    return re.sub(r"\x1b\[[012;]*m", "", found.decode())  # bold, plain; colours stay


def test_tables_fit_a_terminal_of_80_columns_and_have_no_colours_without(pools: Any) -> None:
    pool = pools(nodes=2, node_size="4MiB")
    pool.store("rtx-sherman", name="sessions", capacity=100)
    pool.queue("work").put(1)
    with pool.lock("a lock"):
        shown = on_a_terminal("top", pool.url, "--once", "--interval", "0.1", NO_COLOR="1")
    assert "sessions" in shown
    assert str(os.getpid()) in shown
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "\x1b[3" not in shown


def test_the_table_of_drills_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    progress = Progress.__new__(Progress)
    values: dict[str, Any] = {
        "pids": [4_194_304] * 8, "kills": [123] * 8, "repairs": [12] * 8,
        "memory": [999 << 20] * 8, "recovered": 99, "elapsed_s": 1.0,
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(progress, name, value)
    snapshot = Snapshot.__new__(Snapshot)
    object.__setattr__(progress, "snapshot", snapshot)
    monkeypatch.setattr(Snapshot, "percentile_ns", lambda *args: 99_900_000)
    table = progress_table("t", progress, [123_456.0] * 8, ("get", "write"))
    out = Console(width=80, record=True, file=io.StringIO())
    out.print(table)
    text = out.export_text()
    assert "…" not in text
    assert "repairs" in text


def test_help_of_groups_is_whole() -> None:
    for group in ("drill", "bench"):
        text = CliRunner().invoke(main, [group, "--help"]).output
        assert "..." not in text.partition("Commands:")[2]


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_manual_page_has_every_command_and_option_and_no_mistake() -> None:
    page = CliRunner().invoke(main, ["man"]).stdout
    shown = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-c", "-ww"], input=page, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert shown.stderr == ""
    text = " ".join(re.sub(r".\x08", "", shown.stdout).split())
    top = click.Context(main, info_name="limpet")

    def require(context: click.Context) -> None:
        command = context.command
        assert context.command_path in text
        for parameter in command.get_params(context):
            for option in parameter.opts if parameter.name != "help" else ():
                assert not option.startswith("-") or option in text, option
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                require(click.Context(inner, info_name=name, parent=context))

    for name in main.list_commands(top):
        command = main.get_command(top, name)
        assert command is not None
        require(click.Context(command, info_name=name, parent=top))
    assert "limpet drill explore" in text
    assert "dax:///dev/dax0.0,/dev/dax1.0" in text


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_finds_the_page_where_the_help_says(tmp_path: Path) -> None:
    place = tmp_path / ".local/share/man/man1"
    place.mkdir(parents=True)
    (place / "limpet.1").write_text(CliRunner().invoke(main, ["man"]).stdout)
    done = subprocess.run(
        ["man", "-P", "cat", "limpet"], capture_output=True, text=True, check=False,
        env={**os.environ, "MANPATH": str(place.parent), "MANWIDTH": "80", "LC_ALL": "C"},
    )  # fmt: skip
    if "minimized" in done.stdout:
        pytest.skip("manual pages were left out of this system")
    assert done.returncode == 0, done.stderr
    assert "Crash-tolerant key-value stores in shared memory" in " ".join(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_pools(pools: Any) -> None:
    pool = pools()
    name = pool.url.removeprefix("shm://")
    script = """
        eval "$(_LIMPET_COMPLETE=bash_source limpet)"
        complete -p limpet
        for words in "limpet ins" "limpet top --so" "limpet top --sort mem" "limpet inspect $1"; do
            COMP_WORDS=($words) COMP_CWORD=$(($(wc -w <<< "$words") - 1)) COMPREPLY=()
            _limpet_completion limpet
            echo "$words: ${COMPREPLY[*]}"
        done
    """
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script, "bash", name[:-3]],
        env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    registered, *completed = done.stdout.splitlines()
    assert registered.endswith("-F _limpet_completion limpet")
    assert completed == [
        "limpet ins: inspect",
        "limpet top --so: --sort",
        "limpet top --sort mem: memory",
        f"limpet inspect {name[:-3]}: {name}",
    ]
