"""Short drills: what they find in a sound store, and that each verdict can fail."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from kit.waiting import long_enough

import limpet
from limpet.fault.check.history import read_history
from limpet.fault.check.linearizability import check
from limpet.fault.check.recorder import Operation
from limpet.fault.drill import store_drill as drill
from limpet.fault.drill.drill_base import AUDIT, MOVING, WORKERS, distribution
from limpet.fault.drill.store_drill import (
    CHECKS,
    HISTORY,
    INVARIANTS,
    SERVED,
    WHOLE,
    DrillParameters,
    DrillReport,
)
from limpet.fault.inject.interrupt import Interrupted
from limpet.fault.inject.supervisor import EventLog, Progress, Timer
from limpet.shm.endpoint.layout import EVENTS
from limpet.shm.errors import NodeFailed, ParameterError

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

COMPILED = limpet.build == "compiled"
BUSY = {"kill_rate": 40.0 if COMPILED else 5.0}


class Seen:
    """Notes what a drill says, and calls `running` with each progress."""

    def __init__(self, running: Callable[[Progress], None] = lambda progress: None) -> None:
        self.steps: list[str] = []
        self.progress: list[Progress] = []
        self.judged: list[tuple[int, int]] = []
        self._running = running

    def running(self, progress: Progress) -> None:
        self.progress.append(progress)
        self._running(progress)

    def verifying(self, what: str) -> None:
        self.steps.append(what)

    def judging(self, done: int, total: int) -> None:
        self.judged.append((done, total))


def drilled(
    url: str,
    *,
    history: str | None = None,
    seen: Seen | None = None,
    enough: Callable[[DrillReport], object] = lambda report: True,
    **given: Any,
) -> DrillReport:
    parameters: dict[str, Any] = {
        "seed": 1, "clients": 3, "keys": 100, "kill_rate": 20.0, "stop_rate": 0.0, "seconds": 1.0,
        "blocked_s": 60.0, **given,
    }  # fmt: skip

    def run(seconds: float) -> DrillReport:
        """With as many kills: on a busy machine, clients do little between two of them."""
        kill_rate = parameters["kill_rate"] * parameters["seconds"] / seconds
        made = DrillParameters(url, **{**parameters, "seconds": seconds, "kill_rate": kill_rate})
        return drill.run(made, seen or Seen(), history)

    def is_over_or_busy(report: DrillReport) -> bool:
        planned = len(report.parameters.losses)
        done = report.counts.operations > 100 and len(report.timeline.losses) == planned
        return (done or bool(report.checks[WORKERS])) and bool(enough(report))

    return long_enough(run, is_over_or_busy, parameters["seconds"])


def failed(report: DrillReport) -> set[str]:
    """The checks that did not hold."""
    return {name for name, texts in report.checks.items() if texts}


def left(url: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"limpet.{url.removeprefix('shm://')}.*"))


# ---- a sound store -------------------------------------------------------------------------------


def test_drill_kills_and_everything_holds(make_url: Callable[[], str], tmp_path: Path) -> None:
    url, path, seen = make_url(), tmp_path / "history.jsonl", Seen()

    def enough(report: DrillReport) -> bool:
        return report.kills > 0 and report.counts.missing > 0 and report.counts.exists > 0

    report = drilled(url, history=str(path), seen=seen, enough=enough, **BUSY)
    assert report.ok, report.checks
    assert list(report.checks) == list(CHECKS)
    assert enough(report)
    assert report.kills == report.restarts == report.last.killed
    assert len(report.timeline.kills) == report.kills
    assert report.counts.full == 0
    assert report.audit["leaked"] == 0
    assert report.events_missed == 0
    assert len(report.delays.dead) == report.kills
    assert all(
        0 <= a <= b for a, b in zip(report.delays.noticed, report.delays.repaired, strict=True)
    )
    assert seen.judged[-1] == (report.judged.operations, report.judged.operations)
    assert not left(url)
    records = read_history(path)
    assert len(records) == report.counts.operations + 2 * 100
    assert {record.op for record in records} == {"insert", "update", "put", "get", "delete"}
    assert sum(record.result == "unknown" for record in records) == report.counts.unknown
    assert check(records).ok


@pytest.mark.exhaustive("seconds of processes")
def test_drill_stops_clients_and_lets_them_go_on(make_url: Callable[[], str]) -> None:

    def outlives_a_lease(report: DrillReport) -> bool:
        return any(end - begin > 50_000_000 for begin, end in report.timeline.stops)

    report = drilled(
        make_url(), seconds=1.5, kill_rate=4.0, stop_rate=20.0, lease_ms=50, fence="wait",
        enough=outlives_a_lease,
    )  # fmt: skip
    assert report.ok, report.checks
    assert outlives_a_lease(report)
    assert report.fenced == 0
    assert len(report.timeline.stops) == report.last.stops
    assert all(begin <= end for begin, end in report.timeline.stops)


@pytest.mark.exhaustive("seconds of processes")
@pytest.mark.skipif(not COMPILED, reason="a slow build does not run out of memory in time")
def test_drill_counts_fenced_clients_as_a_legal_end(make_url: Callable[[], str]) -> None:
    """Memory is so scarce that others need what a stopped client keeps from being reused."""
    report = drilled(
        make_url(),
        enough=lambda report: report.fenced,  # on a busy machine, few stops are in the way
        seconds=6.0,
        kill_rate=0.0,
        stop_rate=40.0,
        lease_ms=20,
        nodes=1,
        node_size=1 << 20,
        keys=50,
        value_sizes=(2000, 4000),
        mix={Operation.PUT: 1.0},
        watch=False,
    )
    assert report.ok, report.checks
    assert report.fenced > 0
    # each has a successor, but for those whose end is seen when the run is over
    assert report.fenced - report.parameters.clients <= report.restarts <= report.fenced


@pytest.mark.exhaustive("seconds of processes")
def test_drill_loses_a_node_and_the_rest_is_served(make_url: Callable[[], str]) -> None:
    report = drilled(
        make_url(), losses=((0.4, 1),), enough=lambda report: report.counts.unknown, **BUSY
    )
    assert report.ok, report.checks
    assert [node for _, node in report.timeline.losses] == [1]
    assert 0 < report.unserved < 100
    assert report.counts.unknown > 0
    assert report.audit["failed"] > 0
    assert report.audit["leaked"] == 0


def test_drill_refuses_a_node_that_is_not_there(make_url: Callable[[], str]) -> None:
    with pytest.raises(ParameterError, match="no node 3"):
        drilled(make_url(), losses=((0.4, 3),))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_drill_that_is_interrupted_leaves_nothing(
    make_url: Callable[[], str], number: signal.Signals
) -> None:
    url = make_url()
    seen = Seen(lambda progress: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted, match=number.name):
        drilled(url, seconds=60.0, seen=seen)
    assert psutil.Process().children() == []
    assert not left(url)


def test_drill_that_is_interrupted_while_judging_leaves_nothing(
    make_url: Callable[[], str],
) -> None:
    class Pressing(Seen):
        def judging(self, done: int, total: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    url = make_url()
    with pytest.raises(Interrupted, match="SIGINT"):
        drilled(url, seconds=0.3, seen=Pressing())
    assert psutil.Process().children() == []
    assert not left(url)


# ---- each verdict can fail -----------------------------------------------------------------------


class Broken:
    """A store that breaks its promise in some way."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __iter__(self) -> Any:
        return iter(self._store)

    def put(self, key: bytes, value: bytes) -> None:
        self._store.put(key, value)

    def get(self, key: bytes) -> Any:
        return self._store.get(key)


class LosesUpdates(Broken):
    """An update that finds the key is sometimes not carried out."""

    def update(self, key: bytes, value: bytes) -> None:
        if value[-1] % 2 or self._store.get(key) is None:
            self._store.update(key, value)


class LosesWhatTheDeadWrote(Broken):
    """Recovery takes back what was written, though others have read it."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        pool = store.pool
        recover = pool.recover

        def forget() -> Any:
            for key in list(store):
                store.delete(key)
            return recover()

        pool.recover = forget


class TearsValues(Broken):
    def get(self, key: bytes) -> Any:
        value = self._store.get(key)
        return value if value is None or value[-1] % 2 else value[:-16] + bytes(16)


class Leaks(Broken):
    """A block belongs to no client in the end."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        audit = store.pool.audit
        store.pool.audit = lambda: {**audit(), "leaked": 4096}


class Hangs(Broken):
    def put(self, key: bytes, value: bytes) -> None:
        signal.pause()


class Raises(Broken):
    def put(self, key: bytes, value: bytes) -> None:
        raise RuntimeError("this store is unhappy")


class FailsElsewhere(Broken):
    """Says that a node is lost which is not."""

    def get(self, key: bytes) -> Any:
        if key == b"key-000007":
            raise NodeFailed(0)
        return self._store.get(key)


class ForgetsToServe(Broken):
    """Serves next to nothing once a node is lost."""

    def get(self, key: bytes) -> Any:
        if self._store.pool.nodes()[1]["state"] != "in service":
            raise NodeFailed(1)
        return self._store.get(key)


class Corrupt(Broken):
    def check(self) -> None:
        raise limpet.StoreCorrupt("two slots hold one key")


class ListsOthers(Broken):
    def __iter__(self) -> Any:
        return iter([*self._store, b"a key that no client wrote"])


QUIET = {"kill_rate": 0.0, "watch": False, "seconds": 0.4}


@pytest.mark.exhaustive(
    "seconds of processes each",
    quick=["Corrupt*", "Leaks*", "TearsValues*", "Raises*", "FailsElsewhere-given8*"],
)
@pytest.mark.parametrize(
    ("variant", "given", "expected", "words"),
    [
        (LosesUpdates, QUIET, {HISTORY}, "nothing explains"),
        (LosesWhatTheDeadWrote, QUIET, {HISTORY}, "nothing explains"),
        (TearsValues, QUIET, {WHOLE}, "read a torn value of b'key-"),
        (Leaks, QUIET, {AUDIT}, "4096 bytes are leaked"),
        (Hangs, {**QUIET, "seconds": 60.0, "blocked_s": 0.5}, {MOVING}, "is blocked: none of"),
        (Hangs, {**BUSY, "seconds": 60.0, "blocked_s": 1.5, "mix": {Operation.PUT: 1.0}},
         {MOVING}, "is blocked: none of"),
        (Raises, {**QUIET, "seconds": 60.0}, {WORKERS}, "RuntimeError: this store is unhappy"),
        (FailsElsewhere, {**QUIET, "losses": ((0.1, 1),), "mix": {Operation.PUT: 1.0}},
         {SERVED}, "memory node 0 has failed; lost nodes: [1]"),
        (FailsElsewhere, {**QUIET, "seconds": 60.0, "mix": {Operation.GET: 1.0}},
         {WORKERS, SERVED}, "memory node 0 has failed"),
        (ForgetsToServe, {**QUIET, "losses": ((0.2, 1),)}, {SERVED}, "100 of 100 keys are not"),
        (Corrupt, QUIET, {INVARIANTS}, "two slots hold one key"),
        (ListsOthers, QUIET, {INVARIANTS}, "iteration gives"),
    ],
)  # fmt: skip
def test_drill_catches_a_broken_store(
    make_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    variant: type,
    given: dict[str, Any],
    expected: set[str],
    words: str,
) -> None:
    store = limpet.Pool.store

    def broken(self: limpet.Pool, *args: Any, **parameters: Any) -> Any:
        return variant(store(self, *args, **parameters))

    monkeypatch.setattr(limpet.Pool, "store", broken)

    def is_found(report: DrillReport) -> bool:
        return any(words in text for name in expected for text in report.checks[name])

    report = drilled(make_url(), enough=is_found, **given)
    assert failed(report) == expected
    assert is_found(report), report.checks


def test_drill_fails_when_somebody_else_kills_a_client(make_url: Callable[[], str]) -> None:
    def stranger(progress: Progress) -> None:
        if progress.elapsed_s > 0.2 and progress.pids[0]:
            os.kill(progress.pids[0], signal.SIGKILL)

    report = drilled(make_url(), seconds=60.0, kill_rate=0.0, seen=Seen(stranger))
    assert failed(report) == {WORKERS}
    assert "SIGKILL, which this run did not send" in report.checks[WORKERS][0]


def test_drill_fails_when_a_client_is_fenced_that_may_not_be(make_url: Callable[[], str]) -> None:
    """The same end as by fencing, of a client that was stopped, in a pool that never fences."""

    def stranger(progress: Progress) -> None:
        for pid in progress.pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                if pid and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    os.kill(pid, signal.SIGKILL)

    report = drilled(
        make_url(), seconds=60.0, kill_rate=0.0, stop_rate=50.0, lease_ms=500, fence="wait",
        seen=Seen(stranger),
    )  # fmt: skip
    assert failed(report) == {WORKERS}


# ---- the parts -----------------------------------------------------------------------------------


class Ring:
    """A pool's events, of which only the last EVENTS can be seen; some are never finished."""

    def __init__(self) -> None:
        self.count = 0
        self.unfinished: set[int] = set()

    def events(self, since: int) -> list[dict[str, Any]]:
        numbers = range(max(since, self.count - EVENTS), self.count)
        return [{"number": number} for number in numbers if number not in self.unfinished]


def numbers(log: EventLog) -> list[int]:
    return [event["number"] for event in log.drain()]


def test_event_log_gives_each_event_once_also_late_ones() -> None:
    ring = Ring()
    log = EventLog(ring)
    assert numbers(log) == []
    ring.count, ring.unfinished = 3, {1}
    assert numbers(log) == [0, 2]
    assert log.missed == 1
    ring.count, ring.unfinished = 5, set()
    assert numbers(log) == [1, 3, 4]
    assert (numbers(log), log.missed) == ([], 0)


def test_event_log_says_how_many_were_overwritten() -> None:
    ring = Ring()
    log = EventLog(ring)
    ring.count = 10
    log.drain()
    ring.count = 10 + EVENTS + 7
    assert len(numbers(log)) == EVENTS
    assert log.missed == 7


def test_timer_is_done_once_or_again_and_again() -> None:
    done: list[str] = []
    once, often = Timer(5, lambda: done.append("once")), Timer(5, lambda: done.append("often"), 10)
    for now in (4, 5, 6, 14, 15, 16):
        once.step(now)
        often.step(now)
    assert done == ["once", "often", "often"]
    assert (once.due_ns, often.due_ns) == (None, 25)


def test_distribution_of_nothing_and_of_something() -> None:
    assert distribution([]) == {"count": 0, "p50": None, "p90": None, "p99": None, "p100": None}
    found = distribution(list(range(101)))
    assert found == {"count": 101, "p50": 50.0, "p90": 90.0, "p99": 99.0, "p100": 100.0}


def test_throughput_counts_whole_buckets() -> None:
    from limpet.fault.drill.timeline import Timeline

    returns = np.array([0, 1, 9_999_999, 10_000_000, 25_000_000, 31_000_000])
    timeline = Timeline(35_000_000, returns, np.array([1]), [], [])
    starts, rates = timeline.throughput(10_000_000)
    assert starts.tolist() == [0.0, 0.01, 0.02]
    assert rates.tolist() == [300.0, 100.0, 100.0]
