"""Web workers that enqueue jobs, and workers that do them, as in django-rq; both are killed.

`POST /7` puts a job and answers at once with its id; `GET /id` answers with the result, or with 202
as long as there is none. Any web worker answers for any job: the result is in the pool. A request
that is made again, since its web worker was killed, is the same job, by its key. It takes no
server, as Redis would, and no supervisor: the job of a killed worker is done by the next one.

Everything is on 127.0.0.1, at a port that the kernel chooses.

    python examples/web_jobs.py --jobs 200
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import random
import signal
import socketserver
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import limpet

WEB_WORKERS = 2
WORKERS = 3
JOB_S = 0.01
KILL_EVERY_S = 0.1
LONGEST_S = 60
DELIVERIES = 100

context: Any = multiprocessing.get_context("fork")
ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal."""
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


def work(pool: limpet.Pool) -> None:
    """Do jobs for ever. Run by each worker."""
    jobs = pool.queue("jobs", acks=True)
    while True:
        with jobs.get() as delivery:
            time.sleep(JOB_S)
            delivery.ack(delivery.value**2)


def serve(server: socketserver.TCPServer, pool: limpet.Pool) -> None:
    """Answer requests for ever. Run by each web worker."""
    jobs = pool.queue("jobs", acks=True)

    class Page(BaseHTTPRequestHandler):
        timeout = LONGEST_S

        def do_POST(self) -> None:
            self.answer(202, jobs.submit(int(self.path[1:]), key=self.path).id)

        def do_GET(self) -> None:
            try:
                self.answer(200, str(jobs.job(self.path[1:]).result(0)))
            except TimeoutError:
                self.answer(202, "")

        def answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server.RequestHandlerClass = Page
    server.serve_forever()


class Site:
    """The processes, of which one is killed now and then, and replaced."""

    def __init__(self, server: socketserver.TCPServer, pool: limpet.Pool) -> None:
        self.port = server.server_address[1]
        web, workers = (serve, server, pool), (work, pool)
        self.roles: list[tuple[Any, ...]] = [web] * WEB_WORKERS + [workers] * WORKERS
        self.processes = [self.start(*role) for role in self.roles]
        self.kills = 0
        self.deadline = time.monotonic() + LONGEST_S
        self.next_kill = time.monotonic() + KILL_EVERY_S

    def start(self, function: Callable[..., None], *args: Any) -> Any:
        def life() -> None:
            signal.alarm(2 * LONGEST_S)  # never outlive a parent that was killed itself
            for which in (signal.SIGINT, signal.SIGTERM):
                signal.signal(which, signal.SIG_DFL)
            function(*args)

        process = context.Process(target=life, daemon=True)
        process.start()
        return process

    def ask(self, method: str, path: str) -> tuple[int, str]:
        """The status and body of an answer; asks again when a web worker was killed."""
        while goes_on(self.deadline):
            if time.monotonic() > self.next_kill:
                self.kill()
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
                with contextlib.closing(connection):
                    connection.request(method, path)
                    answer = connection.getresponse()
                    return answer.status, answer.read().decode()
        sys.exit(f"no answer within {LONGEST_S} s")

    def kill(self) -> None:
        number = random.randrange(len(self.processes))
        self.processes[number].kill()
        self.processes[number].join()
        self.processes[number] = self.start(*self.roles[number])
        self.kills += 1
        self.next_kill = time.monotonic() + KILL_EVERY_S

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def run(server: socketserver.TCPServer, pool: limpet.Pool, count: int) -> bool:
    jobs = pool.queue("jobs", count + 1, acks=True, max_deliveries=DELIVERIES)
    site = Site(server, pool)
    right = 0
    try:
        ids = [site.ask("POST", f"/{number}")[1] for number in range(count)]
        for number, job in enumerate(ids):
            status, body = site.ask("GET", f"/{job}")
            while status == 202:
                time.sleep(JOB_S)
                status, body = site.ask("GET", f"/{job}")
            right += (status, body) == (200, str(number**2))
    finally:
        site.close()
    print(f"{site.kills} web workers and workers were killed")
    print(f"{count} jobs, {right} right results; {jobs.dead_letters.qsize()} dead letters")
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    return site.kills > 0 and right == count and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Web workers that enqueue, workers, and kills.")
    parser.add_argument("--jobs", type=int, default=200)
    count = parser.parse_args().jobs
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with (
        limpet.temporary(node_size="16MiB") as pool,
        socketserver.TCPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server,
    ):
        return 0 if run(server, pool, count) else 1


if __name__ == "__main__":
    sys.exit(main())
