"""`limpet drill STORE` as a user runs it: what it says, its exit status, that nothing is left."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from kit.waiting import ended, long_enough, until
from rich.console import Console

import limpet
from limpet.__main__ import main
from limpet.cli.drill_view import KINDS
from limpet.cli.live_view import Screen
from limpet.fault.check.history import read_history
from limpet.fault.drill import store_drill as drill
from limpet.fault.drill.store_drill import CHECKS, DrillParameters
from limpet.shm.errors import StoreCorrupt

pytestmark = pytest.mark.either_build("commands are not compiled")

Process = subprocess.Popen[str]
KILL_RATE = "30" if limpet.build == "compiled" else "4"
SHORT = ("--seconds", "0.6", "--keys", "100", "--clients", "2", "--kill-rate", KILL_RATE)


def run(*arguments: str, url: str = "") -> Result:
    url = url or f"test-{os.getpid()}-cli-drill"
    asked = ["drill", *arguments, "--url", url]

    def for_seconds(seconds: float) -> Result:
        more = ["--seconds", str(seconds)] if "--seconds" in asked else []
        return CliRunner().invoke(main, [*asked, *more], catch_exceptions=False)

    def did_something(shown: Result) -> bool:
        return "no operation came back in the whole run" not in shown.output

    seconds = asked[asked.index("--seconds") + 1] if "--seconds" in asked else "0.6"
    return long_enough(for_seconds, did_something, float(seconds))


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Drills that a test started; they are gone afterwards."""
    processes: list[Process] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def start(started: list[Process], *arguments: str) -> Process:
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet", "drill", "race", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    started.append(process)
    return process


def segments(process: Process) -> list[Path]:
    return list(Path("/dev/shm").glob(f"limpet.drill-{process.pid}.*"))


def wait_for_clients(process: Process, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while len(children := psutil.Process(process.pid).children()) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the clients did not start"
        time.sleep(0.01)
    return children


def test_lease_that_cannot_be_is_refused() -> None:
    shown = CliRunner().invoke(main, ["drill", "race", "--lease", "nan"])
    assert shown.exit_code == 2
    assert "--lease is a time in seconds, not nan" in shown.output


@pytest.mark.exhaustive("seconds of processes")
def test_drill_of_a_store_needs_no_command_and_reports_as_json(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    shown = run("race", *SHORT, "--seed", "5", "--stop-rate", "5", "--lease", "0.04",
                "--history", str(history), "--json")  # fmt: skip
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["ok"]
    assert list(found["checks"]) == list(CHECKS)
    assert all(check == {"held": True, "failures": []} for check in found["checks"].values())
    assert found["parameters"]["seed"] == 5
    assert found["parameters"]["mix"]["get"] == 40
    assert found["kills"] + found["fenced"] == found["restarts"]
    assert found["history"]["verdict"] == "ok"
    assert found["delays_ns"]["dead"]["count"] == found["kills"]
    assert len(read_history(history)) == found["counts"]["operations"] + 200
    assert CliRunner().invoke(main, ["drill", "check", str(history)]).exit_code == 0


def test_drill_prints_lines_and_a_summary() -> None:
    shown = run("run", "race", *SHORT, "--stop-rate", "0", "--no-watch", "--fail-node", "0.3:2")
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert shown.output.count(" operations/s  get p99") >= 1
    assert "node 2 lost at 0." in shown.output
    assert "(0 of the watcher)" in shown.output
    assert "from SIGKILL until the client was" in shown.output
    assert shown.output.count("held  ") == len(CHECKS)
    assert shown.output.endswith("Everything held.\n")


@pytest.mark.exhaustive("seconds of processes")
def test_drill_exits_with_1_and_says_what_did_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(self: Any, found: object) -> None:
        raise StoreCorrupt("two slots hold one key")

    monkeypatch.setattr(drill._Drill, "_check_store", corrupt)
    shown = run("race", *SHORT, "--stop-rate", "0")
    assert shown.exit_code == 1
    assert "FAILED  check()" in shown.output
    assert "StoreCorrupt: two slots hold one key" in shown.output
    assert shown.output.endswith("The drill failed.\n")
    shown = run("race", *SHORT, "--stop-rate", "0", "--json")
    assert shown.exit_code == 1
    assert not json.loads(shown.stdout)["ok"]


@pytest.mark.exhaustive("seconds of processes")
def test_drill_draws_a_timeline(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.png"
    shown = run("race", *SHORT, "--fail-node", "0.3", "--stop-rate", "10", "--lease", "0.04",
                "--timeline", str(path), "--bucket", "20ms")  # fmt: skip
    assert shown.exit_code == 0, shown.output
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1200


def test_drill_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shown = run("race", "--timeline", str(tmp_path / "timeline.png"))
    assert shown.exit_code == 2
    assert "pip install 'limpet[peers]'" in shown.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["run", "nonsense"], "'nonsense' is not"),
        (["race", "--fail-node", "soon"], "is not AT or AT:NODE"),
        (["race", "--fail-node", "1:7"], "there is no node 7"),
        (["race", "--fail-node", "1:1", "--fail-node", "2:1"], "lost only once"),
        (["race", "--nodes", "1", "--fail-node", "1", "--fail-node", "2"], "lost only once"),
        (["race", "--mix", "get"], "is not OPERATION=SHARE"),
        (["race", "--mix", "scan=1"], "is not OPERATION=SHARE"),
        (["race", "--mix", "get=0"], "no operation has a share"),
        (["race", "--value-size", "39"], "40 bytes or more"),
        (["race", "--value-size", "80:50"], "LOW first"),
        (["race", "--value-size", "much"], "is not a size"),
        (["race", "--bucket", "2s"], "from 1ms to 1s"),
        (["race", "--bucket", "10"], "from 1ms to 1s"),
        (["race", "--history", "/nowhere/history"], "no directory /nowhere"),
        (["race", "--node-size", "large"], "cannot read the size"),
    ],
)
def test_drill_refuses_what_makes_no_sense(arguments: list[str], words: str) -> None:
    shown = run(*arguments)
    assert shown.exit_code == 2
    assert words in shown.output


def test_drill_help_names_stores_commands_and_options() -> None:
    shown = CliRunner().invoke(main, ["drill", "--help"]).output
    for word in ("STORE|COMMAND", "limpet drill STORE", "run", "matrix", "explore", "check"):
        assert word in shown
    options = CliRunner().invoke(main, ["drill", "race", "--help"]).output
    for word in ("--kill-rate", "--stop-rate", "--fail-node", "--fence", "--timeline", "--history"):
        assert word in options


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_drill_cleans_up_when_interrupted(started: list[Process], number: signal.Signals) -> None:
    process = start(started, "--seconds", "60", "--kill-rate", "0")
    clients = wait_for_clients(process, 5)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == f"interrupted by {number.name}: the clients have ended and the pool is removed\n"
    assert all(ended(client) for client in clients)
    assert segments(process) == []


def test_drill_that_is_killed_leaves_no_process_and_no_segment(started: list[Process]) -> None:
    process = start(started, "--seconds", "60", "--kill-rate", "0", "--stop-rate", "50")
    clients = wait_for_clients(process, 5)
    process.kill()
    process.communicate()
    until(lambda: all(ended(client) for client in clients), "clients outlived the drill")
    assert segments(process) == []


@pytest.mark.exhaustive("seconds of processes")
def test_screen_shows_clients_and_faults(make_url: Any) -> None:
    parameters = DrillParameters(
        make_url(), seed=1, seconds=0.6, clients=2, keys=50, kill_rate=5, stop_rate=5, lease_ms=40
    )
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True, width=120), parameters, KINDS) as screen:
        report = drill.run(parameters, screen)
    shown = out.getvalue()
    for text in ("2 clients, 0.6 s", "write p99", "repairs", "fenced 0", "checking the store",
                 "judging the history"):  # fmt: skip
        assert text in shown
    assert report.ok, report.checks
