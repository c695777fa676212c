from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import pathlib
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psutil
import pytest

import limpet
from limpet.bench.peers import drivers
from limpet.bench.peers import measure as peers
from limpet.bench.peers.drivers import SCAN_LENGTH, Driver, LimpetDriver
from limpet.bench.peers.embedded import LmdbDriver, UltraDictDriver
from limpet.bench.peers.servers import RedisDriver
from limpet.bench.peers.ycsb import Workload

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

WORKLOAD = Workload(records=200)
STORES = ("race", "rtx-sherman")
SHARED = [name for name in (*STORES, *peers.PEERS) if name != "dict"]


def left_over() -> list[str]:
    """Files in memory of this process's drivers, and the processes that they started."""
    pid = os.getpid()
    marks = (f"limpet-bench-{pid}-", f"limpet.bench-{pid}-")
    found = [
        path.name for path in pathlib.Path("/dev/shm").iterdir() if path.name.startswith(marks)
    ]
    children = [
        child.name()
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    ]
    return found + children


@pytest.fixture
def nothing_left() -> Iterator[None]:
    assert left_over() == []
    yield
    assert left_over() == []


def made(name: str) -> Driver:
    (driver,) = peers.drivers([name], []) if name in STORES else peers.drivers([], [name])
    reason = driver.missing()
    if reason is not None:
        pytest.skip(reason)
    return driver


@pytest.fixture(params=SHARED)
def driver(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Driver]:
    """A driver, started and loaded."""
    driver = made(request.param)
    try:
        driver.start(WORKLOAD)
        driver.load(WORKLOAD.pairs())
        yield driver
    finally:
        driver.stop()


class Remote:
    """A process attached to a store, which gets and puts what it is asked to."""

    def __init__(self, driver: Driver) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, self.theirs = context.Pipe()
        self.process = context.Process(target=self._serve, args=(driver,), daemon=True)
        self.process.start()

    def _serve(self, driver: Driver) -> None:
        connection = driver.attach()
        pipe: Pipe = self.theirs
        while (asked := pipe.recv()) is not None:
            name, *arguments = asked
            result = getattr(connection, name)(*arguments)
            pipe.send(result if name == "get" else None)
        connection.close()

    def ask(self, *asked: Any) -> Any:
        self.pipe.send(asked)
        assert self.pipe.poll(30), f"no answer to {asked}"
        return self.pipe.recv()

    def end(self) -> int | None:
        """Let it detach; its exit status."""
        self.pipe.send(None)
        self.process.join(30)
        status = self.process.exitcode
        self.kill()
        return status

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.theirs.close()


def test_every_loaded_record_is_read_back(driver: Driver) -> None:
    remote = Remote(driver)
    try:
        assert all(remote.ask("get", key) == value for key, value in WORKLOAD.pairs())
        assert remote.ask("get", b"no such key") is None
    finally:
        assert remote.end() == 0


def test_batches_do_as_single_operations(driver: Driver) -> None:
    other = Remote(driver)  # LMDB must not be open over a fork
    one = driver.attach()
    try:
        keys = [key for key, _ in WORKLOAD.pairs()[:20]]
        values = [bytes([number]) * WORKLOAD.value_bytes for number in range(20)]
        one.puts()(list(zip(keys, values, strict=True)))
        assert list(one.gets()([*keys, b"no such key"])) == [*values, None]
        assert [other.ask("get", key) for key in keys] == values
        other.ask("put", keys[3], b"new")
        assert one.gets()(keys)[3] == b"new"
    finally:
        one.close()
        assert other.end() == 0


def test_an_ordered_store_is_scanned_from_a_key_on(driver: Driver) -> None:
    connection = driver.attach()
    try:
        assert (connection.scan is not None) == driver.ordered
        if connection.scan is not None:
            pairs = sorted(WORKLOAD.pairs())
            for first in (0, 5, len(pairs) - 3):
                expected = pairs[first : first + SCAN_LENGTH]
                assert connection.scan(pairs[first][0]) == expected
            assert connection.scan(b"\xff") == []
    finally:
        connection.close()


def test_processes_see_each_others_writes_at_once(driver: Driver) -> None:
    one, other = Remote(driver), Remote(driver)
    key = WORKLOAD.key(7)
    try:
        for turn in range(20):
            writer, reader = (one, other) if turn % 2 else (other, one)
            value = b"%064d" % turn
            writer.ask("put", key, value)
            assert reader.ask("get", key) == value
            assert writer.ask("get", key) == value
        one.ask("put", b"a new key", b"inserted")
        assert other.ask("get", b"a new key") == b"inserted"
    finally:
        assert [one.end(), other.end()] == [0, 0]


def test_nothing_is_left_after_a_worker_was_killed(driver: Driver) -> None:
    remote = Remote(driver)
    remote.ask("put", WORKLOAD.key(1), b"x" * 64)
    remote.kill()
    driver.stop()
    assert left_over() == []


def test_stop_is_allowed_before_start_and_twice(nothing_left: None) -> None:
    for name in SHARED:
        driver = peers.drivers([name], [])[0] if name in STORES else peers.drivers([], [name])[0]
        driver.stop()
        driver.stop()


def test_dict_is_not_shared_and_has_every_record() -> None:
    driver = made("dict")
    assert not driver.shared
    driver.start(WORKLOAD)
    one, other = driver.attach(), driver.attach()
    one.put(WORKLOAD.key(3), b"mine")
    assert other.get(WORKLOAD.key(3)) == dict(WORKLOAD.pairs())[WORKLOAD.key(3)]


def test_ultradict_dumps_are_removed(nothing_left: None) -> None:
    driver = made("ultradict")
    assert isinstance(driver, UltraDictDriver)
    try:
        driver.start(WORKLOAD)
        driver.load(WORKLOAD.pairs())
        driver.dictionary.dump()
        dumps = list(drivers.SHARED_MEMORY.glob(f"{driver.prefix[1:]}*"))
        assert len(dumps) == 1
    finally:
        driver.stop()
    assert not any(dump.exists() for dump in dumps)


def test_missing_redis_server_is_told_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = RedisDriver().missing()
    assert reason is not None
    assert "apt-get install redis-server" in reason


def test_missing_package_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = LmdbDriver().missing()
    assert reason is not None
    assert "lmdb" in reason
    assert "limpet[peers]" in reason


def test_redis_server_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, nothing_left: None
) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\necho out of luck\nexit 1\n")
    server.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    driver = RedisDriver()
    try:
        with pytest.raises(drivers.DriverError, match="out of luck"):
            driver.start(WORKLOAD)
    finally:
        driver.stop()


def test_limpet_driver_of_a_replicated_kind_has_a_node_for_each_replica() -> None:
    driver = LimpetDriver("fusee:3")
    assert (driver.name, driver.kind, driver.nodes) == ("fusee:3", "fusee", 3)
    assert LimpetDriver("fusee").nodes == 2
    assert LimpetDriver("race").nodes == 1


@pytest.mark.parametrize("name", ["race:2", "fusee:x", "fusee:0", "nothing", "nothing:2"])
def test_limpet_driver_refuses_what_is_no_kind(name: str) -> None:
    with pytest.raises(limpet.ParameterError):
        LimpetDriver(name)


@pytest.mark.parametrize("where", ["create", "close"])
def test_a_signal_at_the_edges_of_a_pools_life_leaves_no_pool(
    where: str, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was made and its handle is not assigned yet; and while that is closed."""
    real = limpet.create

    def create(*arguments: Any, **parameters: Any) -> Any:
        pool = real(*arguments, **parameters)
        if where == "create":
            pool.close()
            raise SystemExit(143)
        close = pool.close

        def interrupted() -> None:
            close()
            raise SystemExit(143)

        monkeypatch.setattr(pool, "close", interrupted)
        return pool

    monkeypatch.setattr(limpet, "create", create)

    def life() -> None:
        with contextlib.ExitStack() as stack:
            driver = LimpetDriver("race")
            stack.callback(driver.stop)
            driver.start(WORKLOAD)

    with pytest.raises(SystemExit):
        life()
