from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from click.testing import CliRunner

from limpet.bench.cli import bench
from limpet.bench.peers import measure as peers
from limpet.bench.peers import summary
from limpet.bench.peers.drivers import Connection, DictDriver
from limpet.bench.peers.measure import Measurement, Options, Outcome
from limpet.bench.peers.ycsb import Workload
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

ROOT = pathlib.Path(__file__).parents[2]
TINY = Options(
    workload=Workload(records=50, operations=200),
    processes=(1, 2),
    mixes=("A", "C"),
    rounds=2,
    seconds_per_cell=0.01,
)
TINY_ARGUMENTS = [
    "peers",
    "--records=50",
    "--operations=200",
    "--rounds=2",
    "--seconds-per-cell=0.01",
]
STORES = ["race"]
ONCE = ["--rounds=1", "--processes=1"]


class Named(DictDriver):
    """A dict under another name, that can be told to misbehave."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1


class FailsToStart(Named):
    def start(self, workload: Workload) -> None:
        raise RuntimeError("no room today")


class RaisesInAWorker(Named):
    def attach(self) -> Connection:
        records = super().attach()

        def get(key: bytes) -> bytes | None:
            raise RuntimeError("this get is broken")

        return Connection(get, records.put)


class LosesValues(Named):
    def attach(self) -> Connection:
        return Connection(lambda key: None, lambda key, value: None)


class DiesInAWorker(Named):
    """Is killed at its first put, while the other worker waits for it."""

    def attach(self) -> Connection:
        def put(key: bytes, value: bytes) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        return Connection(super().attach().get, put)


@pytest.mark.exhaustive("seconds of processes")
def test_every_cell_is_measured_in_every_round() -> None:
    # long enough for all operations, also where the warm-up was slow
    options = dataclasses.replace(TINY, seconds_per_cell=60.0)
    lines: list[str] = []
    outcome = peers.run(options, [Named("one"), Named("other")], lines.append)
    assert len(lines) == peers.steps(options, 2)
    # they take turns within a round
    assert list(dict.fromkeys(line.split(", ")[0] for line in lines if "round" in line)) == [
        "round 1 of 2: one",
        "round 1 of 2: other",
        "round 2 of 2: other",
        "round 2 of 2: one",
    ]
    for cell in summary.cells(outcome):  # there is no such peer
        assert cell.speed_vs_lmdb is None
        assert cell.time_vs_dict is None
    expected = {
        (store, processes, loop, round_)
        for store in ("one", "other")
        for processes in (1, 2)
        for loop in ("get", "update", "get_many", "put_many", "A", "C")
        for round_ in (0, 1)
    }
    found = [(m.store, m.processes, m.loop, m.round) for m in outcome.measurements]
    assert set(found) == expected
    assert len(found) == len(expected)
    for row in outcome.measurements:
        assert row.ns_per_op > 0
        assert row.kops > 0
        assert row.operations == 200 * row.processes
        assert (row.get_us_median is not None) == (row.loop in "AC")
        assert (row.update_us_median is not None) == (row.loop == "A")
        if row.get_us_median is not None and row.get_us_p99 is not None:
            assert 0 < row.get_us_median <= row.get_us_p99


@pytest.mark.exhaustive("seconds of processes each", quick=["FailsToStart*"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailsToStart, "no room today"),
        (RaisesInAWorker, "this get is broken"),
        (LosesValues, "not a value of 64 bytes"),
        (DiesInAWorker, "died"),
    ],
)
def test_a_store_that_fails_is_reported_and_the_others_go_on(
    kind: type[Named], reason: str
) -> None:
    bad, good = kind("bad"), Named("good")
    outcome = peers.run(TINY, [bad, good])
    assert list(outcome.failed) == ["bad"]
    assert reason in outcome.failed["bad"]
    assert list(outcome.versions) == ["good"]
    assert {row.store for row in outcome.measurements} == {"good"}
    assert (bad.stopped, good.stopped) == (1, 1)
    # but for the helpers of multiprocessing, which earlier tests may have started
    assert not [
        p for p in psutil.Process().children() if "from multiprocessing." not in str(p.cmdline())
    ]


def test_slow_stores_run_fewer_operations() -> None:
    class Slow(Named):
        def attach(self) -> Connection:
            records = super().attach()

            def get(key: bytes) -> bytes | None:
                until = time.perf_counter_ns() + 100_000
                while time.perf_counter_ns() < until:
                    pass
                return records.get(key)

            return Connection(get, records.put)

    options = Options(
        workload=Workload(records=50, operations=10_000),
        processes=(1,),
        mixes=(),
        rounds=1,
        seconds_per_cell=0.02,
    )

    def counts() -> dict[str, int]:
        outcome = peers.run(options, [Slow("slow")])
        return {row.loop: row.operations for row in outcome.measurements}

    # other programs may slow down the updates, too, but not each time
    found = next((one for one in (counts() for _ in range(50)) if one["update"] > one["get"]), {})
    assert 0 < found["get"] < 1000


def measured(store: str, processes: int, round_: int, ns: float, kops: float) -> Measurement:
    return Measurement(store, "get", processes, round_, 1000, ns, kops)


def test_ratios_are_taken_within_a_round_and_then_the_median() -> None:
    rows = []
    for round_, slow in enumerate((1, 10, 2)):
        rows += [
            measured("dict", 1, round_, 100 * slow, 10),
            measured("lmdb", 1, round_, 1000 * slow, 1),
            measured("race", 1, round_, 200 * slow, 5),
            measured("dict", 2, round_, 100 * slow, 20),
            measured("lmdb", 2, round_, 1000 * slow, 2),
            measured("race", 2, round_, 250 * slow, 9 + round_),
        ]
    options = Options(mixes=(), rounds=3)
    for row in list(rows):
        rows.append(Measurement(**{**vars(row), "loop": "update"}))
    outcome = Outcome(options, tuple(rows), {"dict": "", "lmdb": "", "race": ""}, {}, {}, 50.0)
    found = {(c.store, c.processes, c.loop): c for c in summary.cells(outcome)}
    assert found["race", 1, "get"].speed_vs_lmdb == 5
    assert found["race", 1, "get"].time_vs_dict == 2
    assert found["race", 1, "get"].scaling is None
    assert found["race", 1, "get"].ns_per_op == 400
    assert found["race", 2, "get"].speed_vs_lmdb == 4
    assert found["race", 2, "get"].scaling == 2
    assert found["dict", 1, "get"].time_vs_dict == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": ()},
        {"processes": (0,)},
        {"mixes": ("D",)},
        {"rounds": 0},
        {"batch": 0},
        {"seconds_per_cell": 0.0},
        {"seconds_per_cell": float("nan")},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        Options(**wrong)  # type: ignore[arg-type]


@pytest.mark.exhaustive("every peer")
def test_json_and_chart_from_the_command_line(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "chart.png"
    names = "dict,lmdb,sqlite"
    arguments = [*TINY_ARGUMENTS, "--peers", names, "--json", "--png", str(chart)]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["failed"] == {}
    assert found["missing"] == {}
    assert list(found["versions"]) == [*STORES, "dict", "lmdb", "sqlite"]
    assert found["machine"]["limpet_build"].split()[0] in ("compiled", "pure")
    assert found["parameters"]["workload"]["records"] == 50
    assert len(found["cells"]) == 4 * 2 * 7
    assert len(found["measurements"]) == 2 * len(found["cells"])
    assert all(cell["speed_vs_lmdb"] > 0 for cell in found["cells"])
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive("seconds of processes")
def test_skews_are_run_one_after_the_other_and_drawn_as_lines(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    lines = tmp_path / "lines.png"
    arguments = [*TINY_ARGUMENTS, "--store", "loco", "--peers", "dict", "--mix", "C,W"]
    arguments += ["--rounds", "1", "--theta", "0,0.99"]
    result = CliRunner().invoke(bench, [*arguments, "--json", "--lines", str(lines)])
    assert result.exit_code == 0, result.output
    uniform, skewed = json.loads(result.stdout)
    for found, theta in ((uniform, 0), (skewed, 0.99)):
        assert found["parameters"]["workload"]["theta"] == theta
        mixes = {cell["loop"]: cell for cell in found["cells"] if cell["store"] == "loco"}
        assert mixes["W"]["get_us_median"] is None
        assert mixes["C"]["update_us_median"] is None
        assert mixes["W"]["update_us_median"] > 0
    assert lines.read_bytes().startswith(b"\x89PNG")
    wrong = CliRunner().invoke(bench, [*arguments, "--png", str(lines)])
    assert wrong.exit_code == 2
    assert "--png" in wrong.output


@pytest.mark.exhaustive("every peer")
def test_tables_from_the_command_line() -> None:
    result = CliRunner().invoke(
        bench, [*TINY_ARGUMENTS, *ONCE, "--peers", "dict,sqlite", "--mix", "a"]
    )
    assert result.exit_code == 0, result.output
    for text in (
        *STORES,
        "sqlite",
        "Gets only",
        "100 in one call",
        "YCSB mixes",
        "50 records",
        "Zipfian 0.99",
    ):
        assert text in result.stdout


@pytest.mark.exhaustive("seconds of processes")
def test_scans_are_measured_of_ordered_stores_and_peers() -> None:
    arguments = [*TINY_ARGUMENTS, *ONCE, "--store", "rtx-sherman,race", "--peers", "sqlite"]
    arguments += ["--mix", "C"]
    result = CliRunner().invoke(bench, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    cells = [
        (cell["store"], cell["ns_per_op"])
        for cell in json.loads(result.stdout)["cells"]
        if cell["loop"] == "scan"
    ]
    assert [store for store, _ in cells] == ["rtx-sherman", "sqlite"]
    assert all(ns > 0 for _, ns in cells)
    result = CliRunner().invoke(bench, arguments)
    assert "scans of 100 keys" in result.stdout


@pytest.mark.exhaustive("every peer")
def test_missing_peer_is_named_and_does_not_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = [*TINY_ARGUMENTS, *ONCE, "--peers", "dict,redis", "--mix", "A"]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    assert "missing: redis" in result.stdout
    assert "apt-get install redis-server" in " ".join(result.stdout.split())
    found = json.loads(CliRunner().invoke(bench, [*arguments, "--json"]).stdout)
    assert "redis-server" in found["missing"]["redis"]
    assert "redis" not in found["versions"]


@pytest.mark.exhaustive("every peer")
def test_failed_peer_makes_the_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "manager", lambda: FailsToStart("manager"))
    arguments = [*TINY_ARGUMENTS, *ONCE, "--peers", "dict,manager", "--mix", "C"]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 1
    assert "failed: manager" in result.stdout
    assert "no room today" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--peers", "dict,nosuch"],
        ["--store", "nosuch"],
        ["--processes", "one"],
        ["--processes", "0"],
        ["--mix", "D"],
        ["--records", "0"],
        ["--batch", "0"],
        ["--store", "", "--peers", ""],
        ["--png", "/no/such/directory/chart.png"],
    ],
)
def test_wrong_usage_is_told_at_once(arguments: list[str]) -> None:
    result = CliRunner().invoke(bench, ["peers", *arguments])
    assert result.exit_code == 2
    assert "Error" in result.output


def traces(pid: int) -> list[pathlib.Path]:
    marks = (f"limpet-bench-{pid}-*", f"limpet.bench-{pid}-*")
    return [path for mark in marks for path in pathlib.Path("/dev/shm").glob(mark)]


@pytest.fixture
def benchmark() -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark that would take hours, in the midst of its measuring."""
    there = [name for name in peers.PEERS if peers.PEERS[name]().missing() is None]
    code = "from limpet.bench.cli import bench; bench()"
    arguments = ["peers", "--records=500", "--rounds=1000", "--peers", ",".join(there)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200", "FORCE_COLOR": "1"},
    )
    assert process.stderr is not None
    try:
        said = b""
        while b"round 1 of" not in said:
            part = os.read(process.stderr.fileno(), 4096)
            assert part, said.decode()
            said += part
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        for trace in traces(process.pid):
            remove(trace)


@pytest.mark.exhaustive("seconds of processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_benchmark_leaves_nothing(
    benchmark: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    children = psutil.Process(benchmark.pid).children(recursive=True)
    assert children
    assert traces(benchmark.pid)
    benchmark.send_signal(number)
    benchmark.communicate(timeout=60)
    assert benchmark.returncode != 0
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert traces(benchmark.pid) == []


@pytest.mark.exhaustive("seconds of processes")
def test_processes_of_a_killed_benchmark_end(benchmark: subprocess.Popen[bytes]) -> None:
    children = psutil.Process(benchmark.pid).children(recursive=True)
    assert children
    benchmark.kill()
    benchmark.wait()
    assert psutil.wait_procs(children, timeout=60)[1] == []


def remove(path: pathlib.Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    else:
        path.unlink()
