"""Shared parts of all tests: the build, pools that go away, no hang, no leftovers.

`LIMPET_EXPECT_BUILD=compiled` (or `pure`) makes the run fail at once on another build.
A test that takes longer than `HANG_S` fails; one that cannot even be interrupted ends the run with
the stacks of all threads. A run fails when it leaves a segment or a process behind. Other programs
may use limpet on the same machine meanwhile: a segment is this run's by its name (`NAMED`), unless
that has the pid of a process that this run has not started and that lived when the segment was
first seen, or such a process has it mapped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kit import parts

import limpet
from limpet.adapters.pools import close_pool
from limpet.shm.endpoint.fabric import flush_features

pytest.register_assert_rewrite("kit.scenes")

HANG_S = 300 if limpet.build == "compiled" else 600
AGAIN_S = 10
"""Python drops what is raised while a destructor runs."""
MERCY_S = 30
END_S = 30
"""Killed processes may take some time to end."""
SHM = Path("/dev/shm")
HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "loky.backend.resource_tracker",
)
"""Of multiprocessing, and of joblib: they end with this process."""

NAMED = re.compile(r"limpet\.(?:test|demo|drill|bank|bench|temporary|limpet)-(?:[a-z]+-)*(\d+)[-.]")
"""Names of segments that tests, and the tools that they run, make; group 1: the maker's pid."""

_before: set[str] = set()
_first_seen: dict[str, str] = {}
_complaints: list[str] = []
_stderr = -1


def _segments() -> set[str]:
    return {path.name for path in SHM.glob("limpet.*") if NAMED.match(path.name)}


def pytest_configure(config: pytest.Config) -> None:
    global _stderr
    for line in parts.HELP:
        config.addinivalue_line("markers", line)
    expected = os.environ.get("LIMPET_EXPECT_BUILD")
    if expected and expected != limpet.build:
        raise pytest.UsageError(
            f"LIMPET_EXPECT_BUILD is {expected!r}, but this is the {limpet.build} build"
        )
    _stderr = os.dup(2)
    _before.update(_segments())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells have it for what they start in the background; children would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=(*parts.PARTS, "all"),
        default="all",
        help="run a part of the tests, as kit/parts.py divides them (default: all)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop what is of another part; before others (as `-k`) drop tests that a marker may name."""
    one_by_one = any("::" in arg for arg in config.args)
    wrong = [] if one_by_one else parts.complaints(items, limpet.build)
    if wrong:
        raise pytest.UsageError("\n".join(wrong))
    part, long = config.option.part, os.environ.get("LIMPET_TEST_LONG") == "1"
    skip = pytest.mark.skip(reason="takes long: LIMPET_TEST_LONG=1")
    dropped = []
    for item in items:
        belongs = parts.part_of(item, limpet.build)
        if part not in ("all", belongs):
            dropped.append(item)
        elif belongs == parts.SOAK and not long:
            item.add_marker(skip)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = set(dropped)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # thousands of tests, which no collection has to go through again


def pytest_report_header(config: pytest.Config) -> str:
    return f"limpet {limpet.__version__}, {limpet.build} build, {config.option.part} of the tests"


def _ring(*_: object) -> None:
    faulthandler.dump_traceback(_stderr)
    pytest.fail("the test hangs: it is not over after the time that its module has for each")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test that hangs; note which test new segments were first seen after.

    A module of tests that take long, since they compile, says so by a HANG_S of its own. A test has
    as many times as long as there are busy processes for each core.
    """
    limit = getattr(getattr(item, "module", None), "HANG_S", HANG_S)
    limit *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    previous = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN_S)
    faulthandler.dump_traceback_later(limit + MERCY_S, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        new = _segments() - _before - _first_seen.keys()
        _before.update(others := _made_by_others(new))
        _first_seen.update(dict.fromkeys(new - others, item.nodeid))


def _ours() -> set[int]:
    return {os.getpid()} | {child.pid for child in psutil.Process().children(recursive=True)}


def _made_by_others(names: set[str]) -> set[str]:
    """Those that are named after a living process which is not ours."""
    makers = {name: int(found[1]) for name in names if (found := NAMED.match(name))}
    living = {pid for pid in makers.values() if psutil.pid_exists(pid)}
    others = living - _ours() if living else living
    return {name for name, pid in makers.items() if pid in others}


def _used_by_others() -> set[str]:
    """Segments that a process which is not ours has mapped."""
    ours = _ours()
    used: set[str] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            used.update(
                line.rpartition(f"{SHM}/")[2].split(" ")[0]
                for line in maps.splitlines()
                if f"{SHM}/limpet." in line
            )
    return used


def _left_segments() -> set[str]:
    """Segments of this run that are still there; those of other runs come and go."""
    left = _segments() & _first_seen.keys()
    deadline = time.monotonic() + END_S
    while left and time.monotonic() < deadline:
        left = (left & _segments()) - _used_by_others()
        time.sleep(0.1)
    return left


def _left_processes() -> list[str]:
    deadline = time.monotonic() + END_S
    while True:
        found = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(child.cmdline())
                ended = child.status() == psutil.STATUS_ZOMBIE
                if not ended and not any(h in command for h in HELPERS):
                    found.append(f"process {child.pid}: {command}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _complaints.extend(
        f"segment {name}, first seen after {_first_seen[name]}" for name in sorted(_left_segments())
    )
    _complaints.extend(_left_processes())
    if _complaints:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _complaints:
        terminalreporter.section("left behind", red=True)
        for complaint in _complaints:
            terminalreporter.line(complaint)


class Pools:
    """Makes pools of unique names; `destroy` closes and removes all of them."""

    def __init__(self) -> None:
        self.made: list[limpet.Pool] = []

    @staticmethod
    def url() -> str:
        return f"shm://test-{os.getpid()}-{uuid.uuid4().hex[:12]}"

    def __call__(self, *, node_size: int | str = "2MiB", **parameters: Any) -> limpet.Pool:
        """A new pool, by default of one small node."""
        flushes = limpet.build == "pure" or "clflushopt" in flush_features()
        if parameters.get("coherent") is False and not flushes:
            pytest.skip("this CPU cannot flush cache lines")
        return self.keep(limpet.create(self.url(), node_size=node_size, **parameters))

    def again(self, pool: limpet.Pool, **options: Any) -> limpet.Pool:
        """The same pool, opened once more: another client."""
        return self.keep(limpet.open(pool.url, **options))

    def keep(self, pool: limpet.Pool) -> limpet.Pool:
        self.made.append(pool)
        return pool

    def destroy(self) -> None:
        for pool in reversed(self.made):
            with contextlib.suppress(limpet.LimpetError):
                pool.close()
        for url in {pool.url for pool in self.made}:
            with contextlib.suppress(limpet.PoolNotFound):
                limpet.destroy(url)
        self.made.clear()


@pytest.fixture
def pools() -> Iterator[Pools]:
    """Makes pools; all are closed and destroyed after the test."""
    maker = Pools()
    try:
        yield maker
    finally:
        maker.destroy()


@pytest.fixture
def make_url() -> Callable[[], str]:
    return Pools.url


@pytest.fixture
def location(make_url: Callable[[], str]) -> Iterator[str]:
    """The URL of a pool that an adapter makes; it is closed and destroyed after the test."""
    url = make_url()
    try:
        yield url
    finally:
        close_pool(url)
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(url)
