"""The soak has every drill and every subject, and ends at the first command that fails."""

from __future__ import annotations

import sys
import time

import click
import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.cli.drill import drill
from limpet.fault.drill import soak
from limpet.fault.explore.sim_subjects import CHANNELS as SIMULATED
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.stores.registry import CACHES, KINDS

pytestmark = pytest.mark.either_build("a table")

NO_DRILLS = {"check", "latency", "recovery", "soak"}
"""They judge a file, measure, and run all others."""


def parsed(words: list[str]) -> tuple[str, tuple[str, ...], dict[str, object]]:
    """The drill of a command line, its subjects, and its parameters; nothing is run."""
    context = click.Context(main, info_name="limpet")
    command: click.Command = main
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    given = command.make_context(context.info_name, list(words)).params
    arguments = [given[one.name] for one in command.params if isinstance(one, click.Argument)]
    named = [each if isinstance(each, tuple) else (each,) for each in arguments]
    return str(context.info_name), sum(named, ()), given


def test_every_drill_and_every_subject_is_in_the_soak() -> None:
    rows = [parsed(words) for words in soak.commands()]
    assert {name for name, _, _ in rows} == {"demo", *drill.commands} - NO_DRILLS
    # A drill of which no subject is named takes all.
    assert {name for name, subjects, _ in rows if subjects} == {"run", "explore", "matrix"}
    matrices = [(*subjects, given) for name, subjects, given in rows if name == "matrix"]
    assert {subject for subject, _ in matrices} == {*KINDS, *CACHES, *CHANNELS}
    every = {subject for subject, given in matrices if given["every"] and not given["failures"]}
    assert every == {*KINDS, *CHANNELS}
    explored = {subject for name, subjects, _ in rows if name == "explore" for subject in subjects}
    assert explored >= {*SIMULATED}


def test_soak_runs_its_lines_by_turns_and_ends_with_the_first_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soak, "SETS", {"file": ("a", "b")})
    monkeypatch.setattr(soak, "ROUND", "drill check {file} \\\n    --json\n")
    assert list(soak.commands()) == [["drill", "check", file, "--json"] for file in "ab"]
    monkeypatch.setattr(soak, "PROGRAM", (sys.executable, "-c", "import sys; sys.exit(3)"))
    done = CliRunner().invoke(main, ["drill", "soak", "--minutes", "1"])
    assert done.exit_code == 1
    assert "--- limpet drill check a --json\n" in done.output
    assert "limpet drill check a --json ended with 3" in done.output
    assert "check b" not in done.output


def test_soak_ends_when_its_time_is_over_and_what_had_begun_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soak, "ROUND", "demo\ndrill full")
    monkeypatch.setattr(soak, "PROGRAM", (sys.executable, "-c", "import time; time.sleep(0.2)"))
    began = time.monotonic()
    done = CliRunner().invoke(main, ["drill", "soak", "--minutes", "0.001", "--", "--plain"])
    assert done.exit_code == 0
    assert time.monotonic() - began > 0.2
    assert done.output == "--- limpet demo --plain\nsoak: 0.001 minutes without a failure\n"


def test_soak_without_tests_to_run_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.chdir(str(tmp_path))
    done = CliRunner().invoke(main, ["drill", "soak", "--tests"])
    assert done.exit_code == 1
    assert "there are no tests in" in done.output
