"""However a process ends, or forgets its handles: its clients are gone, and nothing is leaked."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from typing import Any

import pytest

import limpet

ENDS = {
    "exits at once": "os._exit(9)",
    "exits": "sys.exit(0)",
    "is aborted": "os.abort()",
    "runs another program": "os.execv('/bin/true', ['true'])",
    "leaves a daemon thread in an operation": "pool.client.enter(); wait(inside); sys.exit(0)",
    "leaves a daemon thread at work": "wait(work); sys.exit(0)",
    "leaves a daemon thread at work and is killed": "wait(work); os.kill(os.getpid(), 9)",
    "forgets its handle in a cycle": "made = [pool, store]; made.append(made); sys.exit(0)",
}
SCRIPT = """
import faulthandler, os, resource, sys, threading, time, limpet
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
pool = limpet.open(sys.argv[1])
store = pool.store("race", name="s")
store.put(b"k", b"v" * 100)

def wait(function):
    threading.Thread(target=function, daemon=True).start()
    time.sleep(0.05)

def inside():
    store.get(b"k")

def work():
    while True:
        store.put(b"k", b"w" * 100)

"""


@pytest.mark.parametrize("end", ENDS)
def test_process_that_ends_is_no_client_any_more(pools: Any, end: str) -> None:
    pool = pools()
    pool.store("race", name="s", capacity=64)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        [sys.executable, "-c", SCRIPT + ENDS[end], pool.url],
        env=environment, check=False, timeout=60, capture_output=True,
    )  # fmt: skip
    pool.recover()
    assert [client["ours"] for client in pool.clients()] == [True]
    assert pool.audit()["leaked"] == 0
    assert pool.store("race", name="s").get(b"k") in (b"v" * 100, b"w" * 100)


@pytest.mark.exhaustive("every order", quick=["order0", "order3"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_handles_are_forgotten_in_any_order(pools: Any, order: tuple[int, ...]) -> None:
    """Each with a store of its own, in a cycle, as every traceback makes one."""
    pool = pools()
    pool.store("fusee", name="s", capacity=64)
    handles: list[Any] = []
    for number in range(3):
        handle: dict[str, Any] = {"pool": limpet.open(pool.url)}
        handle["store"] = handle["pool"].store("fusee", name="s")
        handle["lock"] = handle["pool"].lock(f"lock {number}")
        handle["itself"] = handle
        handle["store"].put(b"%d" % number, b"v" * 300)
        handle["lock"].acquire()
        handles.append(handle)
    del handle
    for number in order:
        handles[number] = {}
        gc.collect()
    assert [client["ours"] for client in pool.clients()] == [True]
    assert pool.audit()["leaked"] == 0
    assert all(pool.lock(f"lock {number}").acquire(timeout=10) for number in range(3))
