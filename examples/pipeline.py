"""A pipeline of three stages whose workers are killed: each item comes out once, with its result.

Each stage gets jobs from a queue with acks, and puts its result into the queue of the next one; the
end of the block acknowledges the job. A worker that is killed before that has its job done again by
another worker of its stage. If it was killed between the put and the end of the block, the item is
in the next queue already: the key of the put drops the second one, or, if the first one was got by
then, the item goes through the rest twice. The last stage writes by `setdefault`: the first counts.

    python examples/pipeline.py --items 200
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import limpet

WORKERS = 2
"""Of each stage."""
STEP_S = 0.005
KILL_EVERY_S = 0.05
LONGEST_S = 60
DELIVERIES = 1000

ended: list[int] = []
"""Signals that have told this program to end."""


def fetch(number: int) -> str:
    """The first stage: a page of that number."""
    return f"page {number} " * (number % 5 + 1)


def count(page: str) -> int:
    """The second one: its words."""
    return len(page.split())


def price(words: int) -> int:
    """The third one."""
    return 7 * words


STAGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("fetch", fetch), ("count", count), ("price", price),
]  # fmt: skip


def work(pool: limpet.Pool, stage: int) -> None:
    """Do the jobs of a stage until there is one that is None. Run by each worker."""
    signal.alarm(LONGEST_S)  # never outlive a parent that was killed itself
    name, step = STAGES[stage]
    jobs = pool.queue(name, acks=True)
    following = pool.queue(STAGES[stage + 1][0], acks=True) if stage + 1 < len(STAGES) else None
    results, begun = pool.dict("results"), pool.counter("begun")
    while True:
        with jobs.get() as delivery:
            if delivery.value is None:
                return
            number, value = delivery.value
            begun.add()
            time.sleep(STEP_S)
            found = step(value)
            if following is None:
                results.setdefault(number, found)
            else:
                following.put((number, found), key=str(number))


def run(pool: limpet.Pool, items: int) -> bool:
    queues = [
        pool.queue(name, items + WORKERS, acks=True, max_deliveries=DELIVERIES)
        for name, _ in STAGES
    ]
    results, begun = pool.dict("results"), pool.counter("begun")

    def start(stage: int) -> multiprocessing.Process:
        process = multiprocessing.Process(target=work, args=(pool, stage), daemon=True)
        process.start()
        return process

    workers = [[start(stage) for _ in range(WORKERS)] for stage in range(len(STAGES))]
    for number in range(items):
        queues[0].put((number, number))
    kills = begun_before = 0
    deadline = time.monotonic() + LONGEST_S
    try:
        # A stage is done when all jobs of it and of those before it are.
        while not all(jobs.join(timeout=KILL_EVERY_S / 3) for jobs in queues):
            if ended:
                sys.exit(f"ended by {signal.Signals(ended[0]).name}")
            if time.monotonic() > deadline:
                return False
            if begun.value > begun_before + WORKERS * len(STAGES):
                begun_before = begun.value
                stage, place = random.randrange(len(STAGES)), random.randrange(WORKERS)
                workers[stage][place].kill()
                workers[stage][place].join()
                workers[stage][place] = start(stage)
                kills += 1
        for jobs in queues:
            jobs.put_many([None] * WORKERS)
        for worker in itertools.chain(*workers):
            worker.join(30)
    finally:
        for worker in itertools.chain(*workers):
            worker.kill()
            worker.join()
    found = dict(results)
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{kills} workers of {len(STAGES)} stages were killed")
    print(f"{items} items; {begun.value} steps begun for {3 * items}; {len(found)} results")
    print(f"{leaked} bytes leaked")
    right = found == {number: price(count(fetch(number))) for number in range(items)}
    return kills > 0 and right and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A pipeline, and kills.")
    parser.add_argument("--items", type=int, default=500)
    items = parser.parse_args().items
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="16MiB") as pool:
        return 0 if run(pool, items) else 1


if __name__ == "__main__":
    sys.exit(main())
