"""Workers that share a cache of slow reports; one is killed, again and again, as it computes.

One worker computes a report, while the others that want it wait: `get_or_compute`. When the worker
that computes is killed, a waiting worker takes over at once. The cache has room for half of the
reports, and each lives for 0.2 s; then one worker computes it anew, and the others get the old one
meanwhile.

    python examples/shared_cache.py --seconds 3
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable

import limpet

WORKERS = 4
REPORTS = 40
ROOM = 20
COMPUTE_S = 0.005
TTL_S = 0.2
KILL_EVERY_S = 0.1
WORKERS_MOST = 5000
WAIT_S = 60
"""A wait that is longer than this has failed."""


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal."""
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def text(number: int) -> str:
    return f"report {number}: " + "x" * number


def report(pool: limpet.Pool, me: int, number: int) -> str:
    """A slow computation; it counts when another living worker computes the same report."""
    computing, dead = pool.array("computing", REPORTS), pool.array("dead", WORKERS_MOST)
    other = computing[number]
    if other and not dead[other]:
        pool.counter("twice").add()
    computing[number] = me
    time.sleep(COMPUTE_S)
    computing[number] = 0
    return text(number)


def work(pool: limpet.Pool, me: int) -> None:
    """Ask for reports, until the event `closing` is set: worker number `me`."""
    cache: limpet.Cache[int, str] = pool.cache("reports")
    served, wrong, closing = pool.counter("served"), pool.counter("wrong"), pool.event("closing")
    chance = random.Random(me)
    while not closing.is_set():
        number = min(int(chance.paretovariate(0.7)), REPORTS) - 1
        compute = functools.partial(report, pool, me, number)
        if cache.get_or_compute(number, compute, ttl=TTL_S, stale=TTL_S) != text(number):
            wrong.add()
        served.add()


def fork(target: Callable[[], None]) -> int:
    """The pid of a child that does `target`, and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, signal.SIG_DFL)
        signal.alarm(2 * WAIT_S)  # never outlive a parent that was killed itself
        target()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run(pool: limpet.Pool, seconds: float) -> bool:
    cache = pool.cache("reports", max_items=ROOM)
    computing, dead = pool.array("computing", REPORTS), pool.array("dead", WORKERS_MOST)
    served, wrong, twice = (pool.counter(name) for name in ("served", "wrong", "twice"))
    workers: dict[int, int] = {}
    kills = 0
    try:
        for number in range(1, WORKERS + 1):
            workers[number] = fork(functools.partial(work, pool, number))
        end = time.monotonic() + seconds
        while goes_on(end) and kills < WORKERS_MOST - WORKERS - 1:
            time.sleep(KILL_EVERY_S)
            busy = [number for number in computing if number in workers]
            victim = busy[0] if busy else min(workers)
            dead[victim] = 1  # from now on another worker may compute the same report
            pid = workers.pop(victim)
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                sys.exit(f"worker {victim} has failed")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            kills += 1
            workers[WORKERS + kills] = fork(functools.partial(work, pool, WORKERS + kills))
        pool.event("closing").set()
        well = all(os.waitpid(workers.pop(number), 0)[1] == 0 for number in list(workers))
    finally:
        for pid in workers.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    stats = cache.stats()
    print(f"{kills} workers were killed; {served.value} reports served, {wrong.value} wrong")
    print(f"{stats['computations']} computed, {twice.value} of them twice at a time")
    print(f"{stats['evictions']} evicted, {stats['items']} of at most {ROOM} in the cache")
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    right = wrong.value == 0 and twice.value == 0 and stats["items"] <= ROOM
    return well and right and kills > 0 and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Workers with a cache of slow reports, and kills.")
    parser.add_argument("--seconds", type=float, default=2)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="8MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
