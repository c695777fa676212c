"""Counted faults took place, waits of the inspecting client end, and signals leave nothing."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from kit.mutants.race import Mutant, in_force, race_with
from kit.waiting import long_enough

import limpet
from limpet.__main__ import main
from limpet.cli import matrix as matrix_command
from limpet.fault.drill import store_drill as drill
from limpet.fault.drill.drill_base import MOVING, WORKERS, Observer
from limpet.fault.drill.store_drill import SERVED, DrillParameters, DrillReport
from limpet.fault.explore import explorer
from limpet.fault.explore.explorer import Exploration, Tally, cluster_of, explore, numbered_run
from limpet.fault.explore.schedule import parse_schedule, schedule_text
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import Run, replay
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import OPERATIONS, Broken
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.words import TENTATIVE
from limpet.shm.errors import NodeFailed, ParameterError, StoreFull

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

RUNS = 300 if BUILD == "compiled" else 30
SECONDS = 0.5 if BUILD == "compiled" else 3.0


class Unseen(Observer):
    def running(self, progress: Any) -> None: ...

    def verifying(self, what: str) -> None: ...

    def judging(self, done: int, total: int) -> None: ...


def drilled(
    url: str, enough: Callable[[DrillReport], object] = lambda report: True, **given: Any
) -> DrillReport:
    parameters: dict[str, Any] = {
        "seed": 1, "clients": 2, "seconds": SECONDS, "keys": 50, "kill_rate": 0.0, "stop_rate": 0.0,
        "watch": False, **given,
    }  # fmt: skip

    def run(seconds: float) -> DrillReport:
        return drill.run(DrillParameters(url, **{**parameters, "seconds": seconds}), Unseen())

    return long_enough(run, enough, parameters["seconds"])


def is_busy(report: DrillReport) -> bool:
    return report.counts.operations > 100 or bool(report.checks[WORKERS])


def failed(report: DrillReport) -> set[str]:
    return {name for name, texts in report.checks.items() if texts}


class Broke:
    """A store of which subclasses break something."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def __iter__(self) -> Any:
        return iter(self.store)


class BlamesAnother(Broke):
    """A write says now and then that a node is lost which is in service."""

    def put(self, key: bytes, value: bytes) -> None:
        if value[-1] % 4 == 0:
            raise NodeFailed(0)
        self.store.put(key, value)


class FullNowAndThen(Broke):
    """Only a drill's clients meet it: what the last reader calls is as it was."""

    full: tuple[str, ...] = ()

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.maker = os.getpid()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in self.full:
            return found
        calls = itertools.count(1)

        def called(*arguments: bytes) -> Any:
            if os.getpid() != self.maker and next(calls) % 4 == 0:
                raise StoreFull("no room")
            return found(*arguments)

        return called


class HangsInTheEnd(Broke):
    """A read never comes back, for the process that has made the store."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.maker = os.getpid()

    def get(self, key: bytes) -> Any:
        if os.getpid() == self.maker and key == b"key-000003":
            signal.pause()
        return self.store.get(key)


def put_in_force(monkeypatch: pytest.MonkeyPatch, variant: type) -> None:
    store = limpet.Pool.store
    monkeypatch.setattr(limpet.Pool, "store", lambda pool, *a, **p: variant(store(pool, *a, **p)))


# ---- the drill -----------------------------------------------------------------------------------


def test_drill_refuses_a_loss_after_its_end(make_url: Callable[[], str]) -> None:
    with pytest.raises(ParameterError, match=r"node 1 cannot be lost at 40 s"):
        drilled(make_url(), losses=((40.0, 1),))


def test_drill_fails_when_a_node_was_not_lost(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the crew stands in a fork until the run is over."""
    monkeypatch.setattr("limpet.fault.drill.store_drill._Drill._planned", lambda self: [])
    report = drilled(make_url(), is_busy, losses=((0.2, 1),))
    assert failed(report) == {SERVED}
    assert report.checks[SERVED] == ["node 1 was not lost: the run was over before"]


def test_drill_fails_when_nothing_came_back(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "limpet.fault.drill.store_drill.DrillClient._do", lambda *operation: time.sleep(1e-3)
    )  # so clients do nothing
    report = drilled(make_url())
    assert failed(report) == {MOVING}
    assert report.checks[MOVING] == ["no operation came back in the whole run"]


def test_drill_fails_when_a_client_blames_a_node_in_service(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_force(monkeypatch, BlamesAnother)
    report = drilled(make_url(), seconds=60.0, losses=((50.0, 1),))
    assert failed(report) == {WORKERS}
    assert "memory node 0 has failed" in report.checks[WORKERS][0]


@pytest.mark.exhaustive("every operation", quick=["get", "delete"])
@pytest.mark.parametrize("operation", ["insert", "update", "put", "get", "delete"])
def test_only_writes_may_find_the_store_full(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    variant = type("Full", (FullNowAndThen,), {"full": (operation,)})
    put_in_force(monkeypatch, variant)
    report = drilled(make_url(), is_busy, stop_rate=0.1)
    if operation in ("get", "delete"):
        assert failed(report) == {WORKERS}
        assert "StoreFull: no room" in report.checks[WORKERS][0]
    else:
        assert report.ok, report.checks


@pytest.mark.exhaustive("seconds of processes")
def test_drill_ends_when_the_last_reads_do_not(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_force(monkeypatch, HangsInTheEnd)

    def run(blocked_s: float) -> DrillReport:
        """On a busy machine other clients may do nothing for half a second."""
        return drilled(make_url(), blocked_s=blocked_s)

    def is_found(report: DrillReport) -> bool:
        said = f"the last reader of b'key-000003' was blocked for {report.parameters.blocked_s:g} s"
        return failed(report) == {MOVING} and said in report.checks[MOVING][0]

    report = long_enough(run, is_found, 0.5)
    assert is_found(report), report.checks


# ---- the explorer --------------------------------------------------------------------------------


def test_explorer_counts_the_faults_that_took_place() -> None:
    parameters = Exploration(seed=1, crashes=3, stalls=2, node_failures=1)
    tally, dead, lost = Tally(), 0, 0
    with cluster_of(parameters) as stage:
        for number in range(RUNS):
            run = numbered_run(stage, parameters, number)
            tally.add(number, run)
            dead += len(stage.processes.gone)
            lost += len(run.failed)
            again = replay(stage, run.program, parse_schedule(schedule_text(run.schedule)))
            assert again.digest() == run.digest()
    assert tally.crashes == dead > 0
    assert tally.node_failures == lost > 0


def test_explorer_leaves_out_what_changes_nothing() -> None:
    parameters = Exploration(program="ua|ga|ga")
    given = "0.0.1x1,0.0.2x1,0.0.3s1,0.0.4f9,0.0.5x7,0.0.6w2,0.0.7s2,0.0.8s2,2.1.1x2"
    with cluster_of(parameters) as stage:
        run = replay(stage, parse_program(parameters.program), parse_schedule(given))
    assert run.failure == ""
    assert schedule_text(run.schedule) == "0.0.1x1,0.0.7s2"


def get_waiting(self: Any, key: bytes, default: Any = None) -> Any:
    """Waits while any insert is undecided."""
    with self.client:
        self.require_there()
        while not self.index.look_up(self.place, key):
            if not any(word & TENTATIVE for word in self.index.words[:32]):
                return default
            self.endpoint.pause(0)
        return self.objects.value()


WAITS = Mutant("get-waits-for-the-dead", ("no end",), race_with(get=get_waiting))


def test_explorer_ends_when_the_survivor_waits_for_ever() -> None:
    """No other client reads in this program, so only the inspecting client meets the dead one."""
    with in_force(WAITS):
        (failure,) = explore(Exploration(schedules=100_000, seed=1, program="ic||")).failures
    assert failure.what.startswith("no end: the survivor waits")
    assert "x0" in failure.schedule


def test_explorer_says_when_there_are_more_schedules() -> None:
    parameters = {"clients": 2, "program": "ga|ga", "strategy": "exhaustive", "bound": 1}
    assert explore(Exploration(schedules=5, **parameters)).unfinished == 1  # type: ignore[arg-type]
    complete = explore(Exploration(schedules=5000, **parameters))  # type: ignore[arg-type]
    assert complete.unfinished == 0
    assert 5 < complete.schedules < 5000
    words = ["--program", "ga|ga", "--strategy", "exhaustive", "--schedules", "5"]
    result = CliRunner().invoke(main, ["drill", "explore", "race", "--processes", "1", *words])
    assert result.exit_code == 0
    assert "1 of 1 programs have more schedules than --schedules 5" in result.output


def test_explorer_that_is_interrupted_does_not_wait_for_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each program here has schedules for hours."""
    parameters = Exploration(
        clients=4, ops=4, strategy="exhaustive", bound=4, schedules=1 << 30, programs=4, processes=2
    )

    def pressed(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(explorer, "wait", pressed)
    with pytest.raises(KeyboardInterrupt):
        explore(parameters)
    assert psutil.Process().children() == []


def test_explorer_says_loudly_when_a_failure_does_not_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage that breaks something now and then, which no schedule says."""
    runs = itertools.count(1)

    def moody(run: Run) -> str:
        return "leaked: 64 bytes" if next(runs) == 3 else ""

    monkeypatch.setattr(Run, "_inspect", moody)
    words = ["--schedules", "9", "--seed", "1", "--processes", "1"]
    result = CliRunner().invoke(main, ["drill", "explore", "race", *words])
    assert result.exit_code == 1
    assert "failed, but NOT, with digest" in result.output
    assert "not repeatable: the same schedule did it no more" in result.output
    assert "The run had failed with: leaked: 64 bytes" in result.output
    assert "The replay: everything held" in result.output


# ---- the matrix ----------------------------------------------------------------------------------


@pytest.mark.exhaustive("every signal", quick=["15"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_matrix_that_is_interrupted_leaves_nothing(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet", "drill", "matrix", "race", "--op", "insert"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # also where the tests ignore it
    )  # fmt: skip
    assert process.stderr is not None
    try:
        assert "insert, killed: ok" in process.stderr.readline()
        process.send_signal(number)
        _, words = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in words
    assert not list(SHM_DIR.glob(f"limpet.limpet-matrix-{process.pid}-*"))


def test_matrix_that_killed_nobody_has_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = MatrixResult("race", "get", "killed", 0, 0, 0, 0, 0, frozenset(), ())
    monkeypatch.setattr(matrix_command, "run", lambda *_: iter([nothing]))
    result = CliRunner().invoke(main, ["drill", "matrix", "race", "--op", "get"])
    assert result.exit_code == 1
    assert "get, killed: nothing was run" in result.output


def test_matrix_takes_a_write_that_is_refused_for_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = Matrix("race")
    with matrix.testbed(OPERATIONS["insert"]) as scene:
        monkeypatch.setattr(scene, "store", Forgetful(scene.store))
        with pytest.raises(Broken, match="a write was refused: KeyError"):
            scene.work({None})


class Forgetful(Broke):
    """The survivor's delete does not find what it has just read."""

    def delete(self, key: bytes) -> None:
        raise KeyError(key)
