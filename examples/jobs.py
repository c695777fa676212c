"""Jobs that are acknowledged: workers are killed, and every job is done all the same.

A worker gets a delivery from a queue with acks; the end of its block acknowledges the job. When a
worker is killed before that, the next one gets the job, and no process has to look after it. One
job here kills every worker that gets it: after its last delivery it is a dead letter. A worker that
is killed between its result and the end of the block has its job done twice, so results are written
with `setdefault`: the first one counts.

    python examples/jobs.py --jobs 200
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time

import limpet

WORKERS = 4
JOB_S = 0.02
KILL_EVERY_S = 0.1
LONGEST_S = 60
DELIVERIES = 20
POISON = "poison"
"""The job that kills its worker."""

ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal."""
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def work(pool: limpet.Pool) -> None:
    """Do jobs until there is one that is None. Run by each worker."""
    signal.alarm(LONGEST_S)  # never outlive a parent that was killed itself
    jobs, results = pool.queue("jobs", acks=True), pool.dict("results")
    begun = pool.counter("begun")
    while True:
        with jobs.get() as delivery:
            job = delivery.value
            if job is None:
                return
            if job == POISON:
                os.kill(os.getpid(), signal.SIGKILL)
            begun.add()
            time.sleep(JOB_S)
            results.setdefault(job, job**2)


def run(pool: limpet.Pool, count: int) -> bool:
    jobs = pool.queue("jobs", count + WORKERS + 1, acks=True, max_deliveries=DELIVERIES)
    results, begun = pool.dict("results"), pool.counter("begun")
    jobs.put_many(range(count))
    jobs.put(POISON)
    kills = deaths = begun_before = 0
    deadline = time.monotonic() + LONGEST_S

    def start() -> multiprocessing.Process:
        process = multiprocessing.Process(target=work, args=(pool,), daemon=True)
        process.start()
        return process

    workers = [start() for _ in range(WORKERS)]
    try:
        while goes_on(deadline) and not jobs.join(timeout=KILL_EVERY_S / 10):
            for number, worker in enumerate(workers):
                if not worker.is_alive():
                    worker.join()
                    workers[number] = start()
                    deaths += 1
            if begun.value > begun_before + WORKERS:
                begun_before = begun.value
                random.choice(workers).kill()
                kills += 1
        jobs.put_many([None] * WORKERS, priority=1)
        for worker in workers:
            worker.join(30)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    squares = dict(results)
    print(f"{kills} workers were killed; {deaths} new ones were started")
    print(f"{count} jobs; begun {begun.value} times; {len(squares)} results")
    with jobs.dead_letters.get(timeout=1) as letter:
        print(f"a dead letter: {letter.value!r}, {letter.deliveries} times, {letter.reason}")
        poisoned = (letter.value, letter.deliveries) == (POISON, DELIVERIES)
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    right = squares == {job: job**2 for job in range(count)}
    return kills > 0 and right and poisoned and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A queue with acks, and kills.")
    parser.add_argument("--jobs", type=int, default=500)
    count = parser.parse_args().jobs
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="8MiB") as pool:
        return 0 if run(pool, count) else 1


if __name__ == "__main__":
    sys.exit(main())
