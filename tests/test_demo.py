"""The demo as a user runs it: what it says, and that nothing is left however it ends."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kit.waiting import ended, long_enough, until
from rich.console import Console

import limpet
from limpet.cli.demo import KINDS
from limpet.cli.live_view import Rates, Screen
from limpet.fault.drill import demo
from limpet.fault.drill.demo import CHECKS, KEYS, READS, DemoParameters, DemoReport
from limpet.fault.inject.counters import GETS, Counters
from limpet.fault.inject.interrupt import Interrupted
from limpet.fault.inject.supervisor import Progress
from limpet.shm.backends import file
from limpet.shm.endpoint.layout import control_size
from limpet.shm.errors import ParameterError, PoolError
from limpet.shm.parameters import PoolParameters

pytestmark = pytest.mark.either_build("commands are not compiled")

Process = subprocess.Popen[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files of many sizes, an empty one, a link, and packages that are not the library's."""
    folder = tmp_path / "data"
    (folder / "sub" / "site-packages").mkdir(parents=True)
    for number in range(60):
        (folder / "sub" / f"file{number}").write_bytes(os.urandom(number**3))
    (folder / "large").write_bytes(os.urandom(3 << 20))
    (folder / "empty").touch()
    (folder / "link").symlink_to(folder / "large")
    (folder / "sub" / "site-packages" / "other").write_bytes(b"x")
    return folder


@pytest.fixture
def started(data: Path) -> Iterator[list[Process]]:
    """Demos that a test started; they and their pools are gone afterwards."""
    processes: list[Process] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()
            for segment in segments(process):
                segment.unlink()


def start(started: list[Process], data: Path, *arguments: str) -> Process:
    command = [sys.executable, "-m", "limpet", "demo", "--data", str(data), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    started.append(process)
    return process


def segments(process: Process) -> list[Path]:
    return list(Path("/dev/shm").glob(f"limpet.demo-{process.pid}.*"))


def wait_for_workers(process: Process, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while len(children := psutil.Process(process.pid).children()) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the workers did not start"
        time.sleep(0.01)
    return children


@pytest.mark.exhaustive("seconds of processes")
def test_demo_holds_and_reports_as_json(started: list[Process], data: Path) -> None:
    least = 100 if limpet.build == "compiled" else 10

    def run(seconds: float) -> tuple[Process, dict[str, Any]]:
        process = start(
            started, data, f"--seconds={seconds}", "--kill-rate=20", "--clients=3", "--seed=5",
            "--json",
        )  # fmt: skip
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        return process, json.loads(out)

    def enough(ran: tuple[Process, dict[str, Any]]) -> bool:
        """On a busy machine there may be nobody to kill for a while."""
        found = ran[1]
        done = min(found["operations"], found["verdict"]["writes"])
        return found["kills"] >= 20 and done > least

    process, found = long_enough(run, enough, 2.0)
    seconds = found["parameters"]["seconds"]
    assert found["ok"]
    assert list(found["checks"]) == list(CHECKS)
    assert all(check == {"held": True, "failures": []} for check in found["checks"].values())
    assert found["files"] == 62
    assert found["kills"] == found["restarts"] == sum(one["kills"] for one in found["workers"])
    assert 20 <= found["kills"] <= 30 * seconds
    assert found["parameters"]["seed"] == 5
    assert found["operations"] > least
    assert found["verdict"]["writes"] > least
    assert found["audit"]["leaked"] == 0
    assert 0 < found["latency_ns"]["get_p50"] <= found["latency_ns"]["get_p99"]
    assert segments(process) == []


def test_demo_prints_a_line_a_second_and_a_summary(started: list[Process], data: Path) -> None:
    process = start(started, data, "--seconds", "2", "--clients", "2", "--kill-rate", "0")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert err == ""
    assert "\x1b" not in out
    assert 1 <= out.count(" operations/s  get p99") <= 5
    assert "62 files" in out
    assert "0 kills" in out
    assert out.count("held  ") == len(CHECKS)
    assert out.endswith("Everything held.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_cleans_up_when_interrupted(
    started: list[Process], data: Path, number: signal.Signals
) -> None:
    process = start(started, data, "--seconds", "60")
    workers = wait_for_workers(process, 4)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == f"interrupted by {number.name}: the clients have ended and the pool is removed\n"
    assert all(ended(worker) for worker in workers)
    assert segments(process) == []


@pytest.mark.exhaustive("seconds of processes")
def test_demo_that_is_killed_takes_its_workers_along(started: list[Process], data: Path) -> None:
    process = start(started, data, "--seconds", "60")
    workers = wait_for_workers(process, 4)
    process.kill()
    process.communicate()
    until(lambda: all(ended(worker) for worker in workers), "workers outlived the demo")
    assert len(segments(process)) == 4
    command = [sys.executable, "-m", "limpet", "destroy", f"demo-{process.pid}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert segments(process) == []


def test_demo_fails_when_somebody_else_kills_a_worker(started: list[Process], data: Path) -> None:
    process = start(started, data, "--seconds", "60", "--kill-rate", "0", "--json")
    wait_for_workers(process, 4)[0].kill()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    found = json.loads(out)
    assert not found["ok"]
    failed = [name for name, check in found["checks"].items() if not check["held"]]
    assert failed == [CHECKS[0]]
    assert "SIGKILL, which this run did not send" in found["checks"][CHECKS[0]]["failures"][0]
    assert segments(process) == []


def test_demo_fails_when_a_value_is_damaged(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key deleted and a value overwritten behind its back, after the workers have ended."""
    work = demo._Demo.work

    def work_and_damage(self: demo._Demo) -> None:
        work(self)
        self.store.delete(b"empty")
        self.store.put(b"large", bytes(100))
        self.store.put(b"extra", b"")

    monkeypatch.setattr(demo._Demo, "work", work_and_damage)
    parameters = DemoParameters(
        f"file://{tmp_path}/pool", 1, data=data, seconds=0.2, clients=1, kill_rate=0
    )
    found = demo.run(parameters, Recording())
    assert not found.ok
    assert found.verdict.wrong == {"missing": 2, "torn": 2}
    assert "1 keys are missing [b'empty'], 1 too many [b'extra']" in found.checks[KEYS][0]
    assert not list((tmp_path / "pool").glob("*"))


class Recording:
    """Notes what the demo says."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def loading(self, done: int, total: int) -> None:
        self.steps.append("loading")

    def running(self, progress: object) -> None:
        self.steps.append("running")

    def verifying(self, what: str) -> None:
        self.steps.append("verifying")


class Unfaithful:
    """A store that breaks its promise now and then."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._count = 0
        self._last: dict[bytes, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._store)

    def often(self) -> bool:
        self._count += 1
        return self._count % 10 == 0


class LosesWrites(Unfaithful):
    def put(self, key: bytes, value: bytes) -> None:
        if not self.often():
            self._store.put(key, value)


class MixesValues(Unfaithful):
    def get(self, key: bytes) -> bytes:
        value: bytes = self._store.get(key)
        last = self._last.get(key, value)
        self._last[key] = value
        half = len(value) // 2
        return last[:half] + value[half:-8] + last[-8:] if self.often() else value


class ReadsLate(Unfaithful):
    def get(self, key: bytes) -> bytes:
        value: bytes = self._store.get(key)
        last = self._last.setdefault(key, value)
        return last if self.often() else value


@pytest.mark.exhaustive("seconds of processes each", quick=["LosesWrites*"])
@pytest.mark.parametrize(
    ("variant", "kind"),
    [(LosesWrites, "stale"), (MixesValues, "torn"), (ReadsLate, "stale")],
)
def test_demo_catches_a_store_that_breaks_its_promise(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, variant: type, kind: str
) -> None:
    store = limpet.Pool.store

    def unfaithful(self: limpet.Pool, *args: Any, **parameters: Any) -> Any:
        return variant(store(self, *args, **parameters))

    monkeypatch.setattr(limpet.Pool, "store", unfaithful)

    def run(seconds: float) -> DemoReport:
        parameters = DemoParameters(
            f"file://{tmp_path}/pool", 1, data=data, seconds=seconds, clients=2, kill_rate=0
        )
        return demo.run(parameters, Recording())

    found = long_enough(run, lambda found: found.verdict.wrong[kind], 1.0)
    assert not found.ok
    assert found.verdict.wrong[kind] > 0
    assert any(text.startswith(f"{kind}: ") for text in found.checks[READS])


class Interrupting(Recording):
    """Presses Ctrl-C in one phase."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self._phase = phase

    def _press(self, phase: str) -> None:
        if phase == self._phase:
            os.kill(os.getpid(), signal.SIGINT)

    def loading(self, done: int, total: int) -> None:
        self._press("loading")

    def running(self, progress: object) -> None:
        self._press("running")

    def verifying(self, what: str) -> None:
        self._press("verifying")


@pytest.mark.parametrize("phase", ["loading", "running", "verifying"])
def test_demo_cleans_up_when_interrupted_in_any_phase(
    tmp_path: Path, data: Path, phase: str
) -> None:
    seconds = 60 if phase == "running" else 0.2
    parameters = DemoParameters(f"file://{tmp_path}/pool", 1, data=data, seconds=seconds, clients=2)
    before = psutil.Process().children()  # multiprocessing's helpers, perhaps
    with pytest.raises(Interrupted, match="SIGINT"):
        demo.run(parameters, Interrupting(phase))
    assert not list((tmp_path / "pool").glob("*"))
    assert psutil.Process().children() == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_demo_refuses_what_cannot_work(tmp_path: Path, data: Path) -> None:
    empty = tmp_path / "none"
    empty.mkdir()
    url = f"file://{tmp_path}/pool"
    with pytest.raises(ParameterError, match="no files"):
        demo.run(DemoParameters(url, 1, data=empty), Recording())
    os.truncate(data / "large", 1 << 42)
    with pytest.raises(PoolError, match=r"needs up to \d+ MiB, .* has \d+ MiB free; make room"):
        demo.run(DemoParameters(url, 1, data=data), Recording())
    assert not (tmp_path / "pool").exists()


def test_demo_loads_what_there_is_room_for(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose /dev/shm has 64 MiB unless it is told otherwise."""
    room = 64 << 20
    monkeypatch.setattr(file, "room", lambda folder: room)
    parameters = DemoParameters(f"file://{tmp_path}/pool", 1, data=data, seconds=0.3)
    library = {Path(str(number)): 40_000 for number in range(5_000)}
    files, each, _ = demo.fit({Path("large"): room, **library}, parameters)
    assert 100 < len(files) < 5_000
    assert Path("large") not in files
    control = control_size(PoolParameters().clients, 3 * each)
    assert 3 * each + control <= room
    for number in range(200):
        (data / f"many{number}").write_bytes(bytes(number))
    os.truncate(data / "large", 100 << 20)
    report = demo.run(parameters, Recording())
    assert report.ok, report.checks
    assert report.skipped == ["1 of 262 files, for which there is no room"]


def test_demo_skips_and_names_files_that_cannot_be_read(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "file7":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    parameters = DemoParameters(
        f"file://{tmp_path}/pool", 1, data=data, seconds=0.2, clients=1, kill_rate=0
    )
    found = demo.run(parameters, Recording())
    assert found.ok, found.checks
    assert found.files == 61
    assert found.skipped == [f"{data}/sub/file7: Permission denied"]


@pytest.mark.parametrize("kind", ["rtx-race", "rtx-sherman", "loco", "rcuckoo", "fusee", "swarm"])
def test_demo_fits_every_kind_to_the_files_and_names_those_that_are_too_large(
    tmp_path: Path, data: Path, kind: str
) -> None:
    (data / ("n" * 100)).write_bytes(b"a long key")
    if kind in ("fusee", "swarm"):  # an object is in one run of blocks on each of its nodes
        large = data / "sub" / "huge"
        large.touch()
        os.truncate(large, 20 << 20)
        said = rf"/huge \({20 << 20} bytes\): .* an object has room for"
    elif kind == "rtx-race":
        said = ""
    else:
        deep = data / ("d" * 200)
        deep.mkdir()
        (deep / ("e" * 100)).write_bytes(b"no kind with keys in place takes this one")
        (deep / ("f" * 100)).write_bytes(b"nor this")
        said = "eee .* the key .* has 301 bytes; the store was made with key_size=255; and 1 more"
    parameters = DemoParameters(
        f"file://{tmp_path}/pool", 1, data=data, seconds=0.3, clients=2, store=kind, kill_rate=5
    )
    found = demo.run(parameters, Recording())
    assert found.ok, found.checks
    assert found.files == 63
    assert len(found.skipped) == bool(said)
    for text in found.skipped:
        assert re.search(said, text), text


def test_demo_refuses_when_no_file_can_be_loaded(tmp_path: Path) -> None:
    deep = tmp_path / "data" / ("d" * 200)
    deep.mkdir(parents=True)
    (deep / ("e" * 100)).touch()
    parameters = DemoParameters(f"file://{tmp_path}/pool", 1, data=deep.parent, store="loco")
    with pytest.raises(PoolError, match=r"no file of .* could be loaded .*301 bytes"):
        demo.run(parameters, Recording())
    assert not list((tmp_path / "pool").glob("*"))


def test_screen_shows_progress_and_leaves_nothing_behind(tmp_path: Path, data: Path) -> None:
    parameters = DemoParameters(
        f"file://{tmp_path}/pool", 1, data=data, seconds=0.6, clients=2, kill_rate=5
    )
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True, width=120), parameters, KINDS) as screen:
        report = demo.run(parameters, screen)
    for text in ("loading ", "2 clients, 0.6 s", "get p99", "repairs", "checking the store"):
        assert text in out.getvalue()
    assert report.ok, report.checks


def test_rates_are_of_the_last_second() -> None:
    counters = Counters(2)
    rates = Rates(2)

    def at(elapsed_s: float, slot: int, operations: int) -> list[float]:
        for _ in range(operations):
            counters.counter(slot).add(GETS, 1, 1)
        return rates.of(Progress(elapsed_s, counters.read(), [1, 2], [0, 0], [0, 0], [0, 0], 0))

    assert at(0.5, 0, 100) == [200, 0]
    assert at(1.0, 1, 100) == [100, 100]
    assert at(1.5, 0, 50) == [50, 100]
    assert at(9.0, 0, 75) == [10, 0]
