"""A work queue whose workers are killed: every job is done, and its result counts once.

A worker gets a job, does it, writes its result and calls `task_done`. When it is killed before
that, the job is lost, and `join` raises `TasksLost`, whose `elements` are the jobs to be put again
(`queue.lost()` gives them at any time, and `forget_lost` forgets them). A worker that is killed
between its result and `task_done` has its job done twice, so the result is written under the job's
number with `setdefault`: the first one counts.

    python examples/work_queue.py --jobs 200
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


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal.

    The handler itself does not raise: Python drops exceptions of handlers while it forks.
    """
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def work(pool: limpet.Pool) -> None:
    """Do jobs until there is one that is None. Run by each worker."""
    signal.alarm(LONGEST_S)  # never outlive a parent that was killed itself
    jobs, results = pool.queue("jobs"), pool.dict("results")
    begun = pool.counter("begun")
    while (job := jobs.get()) is not None:
        begun.add()
        time.sleep(JOB_S)
        results.setdefault(job, (job**2, os.getpid()))
        jobs.task_done()
    jobs.task_done()


def run(pool: limpet.Pool, count: int) -> bool:
    jobs, results = pool.queue("jobs", maxsize=count + WORKERS), pool.dict("results")
    jobs.put_many(range(count))
    kills = given_back = begun_before = 0
    begun = pool.counter("begun")
    deadline = time.monotonic() + LONGEST_S

    def start() -> multiprocessing.Process:
        process = multiprocessing.Process(target=work, args=(pool,), daemon=True)
        process.start()
        return process

    workers = [start() for _ in range(WORKERS)]
    try:
        while goes_on(deadline):
            try:
                if jobs.join(timeout=KILL_EVERY_S):
                    break
            except limpet.TasksLost as error:
                jobs.put_many(error.elements)
                jobs.forget_lost(error)
                given_back += len(error.elements)
                continue
            if begun.value == begun_before:
                continue  # they have hardly started
            begun_before = begun.value
            victim = random.randrange(WORKERS)
            workers[victim].kill()
            workers[victim].join()
            workers[victim] = start()
            kills += 1
        jobs.put_many([None] * WORKERS)
        for worker in workers:
            worker.join(30)
        well = all(worker.exitcode == 0 for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    squares = {job: result for job, (result, _) in results.items()}
    print(f"{kills} workers were killed; {given_back} jobs were given back, and put again")
    print(f"{count} jobs; begun {begun.value} times; {len(squares)} results")
    print(f"by {len({pid for _, pid in results.values()})} processes")
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    right = squares == {job: job**2 for job in range(count)}
    return kills > 0 and right and well and jobs.empty() and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A work queue, and kills.")
    parser.add_argument("--jobs", type=int, default=500)
    count = parser.parse_args().jobs
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="8MiB") as pool:
        return 0 if run(pool, count) else 1


if __name__ == "__main__":
    sys.exit(main())
