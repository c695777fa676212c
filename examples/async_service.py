"""An asyncio service whose worker processes are killed, and that answers every request.

A connection's task puts a job into a queue with acks, and waits for its answer. All tasks wait in
one event loop: none of them keeps the others waiting, and the process has one thread for all waits
(docs/async.md). A worker that is killed has its job done by another one; if it was killed between
the answer and the end of its block, there is a second answer, which is dropped.

    python examples/async_service.py --requests 400
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import random
import signal
import sys
import time
from typing import Any

import limpet
from limpet import aio

WORKERS = 4
CLIENTS = 20
JOB_S = 0.01
KILL_EVERY = 15
"""Answers."""
LONGEST_S = 60

CONTEXT = multiprocessing.get_context("forkserver")


def work(pool: limpet.Pool) -> None:
    """Do jobs until there is one that is None. Run by each worker."""
    signal.alarm(LONGEST_S)  # never outlive a parent that was killed itself
    jobs, answers = pool.queue("jobs", acks=True), pool.queue("answers")
    while True:
        with jobs.get() as delivery:
            if delivery.value is None:
                return
            number, asked = delivery.value
            time.sleep(JOB_S)
            answers.put((number, asked**2))


class Service:
    """Answers lines with numbers by lines with their squares."""

    def __init__(self, pool: limpet.Pool) -> None:
        self.pool = pool
        self.jobs = aio.wrap(pool.queue("jobs", acks=True))
        self.answers = aio.wrap(pool.queue("answers"))
        self.numbers = itertools.count()
        self.waiting: dict[int, asyncio.Future[int]] = {}
        self.kills = self.answered = self.dropped = 0
        self.workers = [CONTEXT.Process(target=work, args=(pool,)) for _ in range(WORKERS)]

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the service ends
            while line := await reader.readline():
                number = next(self.numbers)
                self.waiting[number] = asyncio.get_running_loop().create_future()
                await self.jobs.put((number, int(line)))
                writer.write(b"%d\n" % await self.waiting[number])
        writer.close()

    async def dispatch(self) -> None:
        """Give the answers to the tasks that wait for them."""
        while True:
            number, answer = await self.answers.get()
            self.answered += 1
            found = self.waiting.pop(number, None)
            if found is None or found.done():
                self.dropped += 1
            else:
                found.set_result(answer)

    async def kill(self) -> None:
        """Kill workers, and start new ones."""
        answered = 0
        while True:
            await asyncio.sleep(JOB_S)
            if self.answered < answered + KILL_EVERY:
                continue
            answered = self.answered
            place = random.randrange(WORKERS)
            self.workers[place].kill()
            self.kills += 1
            await asyncio.to_thread(self.workers[place].join)
            self.workers[place] = CONTEXT.Process(target=work, args=(self.pool,))
            await asyncio.to_thread(self.workers[place].start)


async def client(port: int, asked: range) -> int:
    """Ask for some squares; how many were right."""
    reader, writer = await asyncio.open_connection("localhost", port)
    right = 0
    for number in asked:
        writer.write(b"%d\n" % number)
        right += int(await reader.readline()) == number**2
    writer.close()
    return right


async def serve(pool: limpet.Pool, count: int) -> str | None:
    """Answer so many requests; what went wrong, if anything."""
    service = Service(pool)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[signal.Signals] = loop.create_future()

    def end(which: signal.Signals) -> None:
        if not ended.done():
            ended.set_result(which)

    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, end, which)
    for worker in service.workers:
        worker.start()
    server = await asyncio.start_server(service.connection, "localhost", 0)
    tasks: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(one) for one in (service.dispatch(), service.kill())
    ]
    try:
        port = server.sockets[0].getsockname()[1]
        asked = [client(port, range(n, count, CLIENTS)) for n in range(CLIENTS)]
        answers = asyncio.gather(*asked)
        tasks += [ended, answers]
        done, _ = await asyncio.wait(tasks, timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
        if ended in done:
            return f"ended by {ended.result().name}"
        if answers not in done:
            return f"no answers within {LONGEST_S} s"
        right = sum(answers.result())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
        for worker in service.workers:
            worker.kill()
            worker.join()
    print(f"{service.kills} workers were killed; {service.dropped} second answers")
    print(f"{count} requests, {right} right answers")
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    held = service.kills > 0 and right == count and leaked == 0
    return None if held else "a promise was not kept"


def main() -> str | None:
    parser = argparse.ArgumentParser(description="An asyncio service, and kills.")
    parser.add_argument("--requests", type=int, default=1000)
    count = parser.parse_args().requests
    with limpet.temporary(node_size="8MiB") as pool:
        return asyncio.run(serve(pool, count))


if __name__ == "__main__":
    sys.exit(main())
