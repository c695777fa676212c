"""Processes of two PID namespaces that use one pool at one time, as two containers of a pod do that
share /dev/shm. Needs unshare(1), and the right to make namespaces."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kit.waiting import until

CONTAINER = ["unshare", "-pf", "--kill-child", "--mount-proc"]
WORK = """
import os, sys, limpet
with limpet.open(sys.argv[1]) as pool:
    counter, kv, name = pool.counter("c"), pool.store("race", name="s"), sys.argv[2]
    print(os.getpid(), flush=True)
    done = 0
    while not os.path.exists(sys.argv[3]):
        with pool.lock("l"):
            counter.add(1)
        done += 1
        kv.put(name.encode(), b"%d" % done)
    print(done, flush=True)
"""


@contextlib.contextmanager
def container(url: str, name: str, stop: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a PID namespace of its own, at work, which ends when the file `stop` is there.

    Skips where this user may not make namespaces.
    """
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"this user may not run {' '.join(CONTAINER)}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*CONTAINER, sys.executable, "-c", WORK, url, name, str(stop)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    assert found, process.stderr and process.stderr.read()
    return found


def test_two_containers_work_on_one_pool_and_one_is_killed(pools: Any, tmp_path: Any) -> None:
    pool = pools(multi_host=True, lease=60)
    counter, kv = pool.counter("c"), pool.store("race", name="s")
    with container(pool.url, "a", tmp_path / "stop") as a:
        with container(pool.url, "b", tmp_path / "stop") as b:
            # Each is the first process of its namespace: pids say nothing about the other's.
            assert line(a) == line(b)
            until(lambda: counter.value >= 200 and kv.get(b"a") and kv.get(b"b"))
            assert len(pool.clients()) == 3
            b.kill()
            b.wait()
        dead = time.monotonic()
        while len(pool.clients()) > 2:
            pool.recover()
            # Life locks tell at once: no lease is waited for.
            assert time.monotonic() < dead + 50
        before = counter.value
        until(lambda: counter.value >= before + 100)
        (tmp_path / "stop").touch()
        done = int(line(a))
        a.wait()
    last = int(kv.get(b"b"))
    assert done + last <= counter.value <= done + last + 1
    assert len(pool.clients()) == 1
    kv.check()
    assert pool.audit()["leaked"] == 0


def test_pool_of_one_host_names_what_a_second_container_needs(pools: Any, tmp_path: Any) -> None:
    pool = pools()
    assert pool.client_id
    with container(pool.url, "a", tmp_path / "stop") as a:
        assert a.stderr is not None
        assert "create the pool with multi_host=True" in a.stderr.read()
        assert a.wait() == 1
