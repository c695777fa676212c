"""Web workers that share a cache of rendered pages; one of them is killed, and replaced.

The workers are forked before the first request and accept from one listening socket, as those of
gunicorn or uWSGI do. Their cache is a `pool.dict`, so a page that one worker has rendered is a hit
for all of them, also for those that come later, and when the worker that rendered it is dead. It
takes no server, as Redis or memcached would.

Everything is on 127.0.0.1, at a port that the kernel chooses.

    python examples/web_workers.py --seconds 3
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import signal
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import limpet

WORKERS = 4
VISITORS = 6
PAGES = 40
RENDER_S = 0.02
WAIT_S = 60
"""A wait that is longer than this has failed."""


ended: list[int] = []
"""Signals that have told this program to end."""


def goes_on(deadline: float) -> bool:
    """Whether the deadline is not over. Ends the program, with its clean-up, after a signal.

    The handler itself does not raise: Python drops exceptions of handlers while it forks.
    """
    if ended:
        sys.exit(f"ended by {signal.Signals(ended[0]).name}")
    return time.monotonic() < deadline


class Server(socketserver.TCPServer):
    request_queue_size = 64


def render(path: str) -> str:
    """A slow computation, worth a cache."""
    time.sleep(RENDER_S)
    return f"<h1>{path}</h1>"


def serve(server: Server, pool: limpet.Pool, number: int) -> None:
    """Answer requests for ever: worker `number`."""
    cache = pool.dict("pages")
    rendered, shared = pool.array("rendered", WORKERS + 1), pool.array("shared", WORKERS + 1)

    class Page(BaseHTTPRequestHandler):
        timeout = WAIT_S

        def do_GET(self) -> None:
            found = cache.get(self.path)
            if found is None:
                found = cache.setdefault(self.path, (number, render(self.path)))
                rendered.add(number)
            elif found[0] != number:
                shared.add(number)  # a hit: another worker has rendered the page
            self.send_response(200)
            self.send_header("X-Rendered-By", str(found[0]))
            self.send_header("Content-Length", str(len(found[1])))
            self.end_headers()
            self.wfile.write(found[1].encode())

        def log_message(self, *_: object) -> None:
            pass

    server.RequestHandlerClass = Page
    server.serve_forever()


def get(port: int, path: str) -> tuple[int, str, int]:
    """Status and body of a page, and the number of the worker that has rendered it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), int(answer.headers["X-Rendered-By"])
    finally:
        connection.close()


def visit(port: int, pool: limpet.Pool) -> None:
    """Ask for pages, by several threads, until the event `closing` is set."""
    answers, wrong, again = (pool.counter(name) for name in ("answers", "wrong", "again"))
    closing = pool.event("closing")

    def visitor() -> None:
        while not closing.is_set():
            path = f"/page/{random.randrange(PAGES)}"
            try:
                status, body, _ = get(port, path)
            except (OSError, http.client.HTTPException):
                again.add()  # its worker was killed; the next one answers
                continue
            answers.add()
            if (status, body) != (200, f"<h1>{path}</h1>"):
                wrong.add()

    threads = [threading.Thread(target=visitor) for _ in range(VISITORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fork(work: Callable[[], None]) -> int:
    """The pid of a child that does `work`, and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, signal.SIG_DFL)
        signal.alarm(2 * WAIT_S)  # never outlive a parent that was killed itself
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if not goes_on(deadline):
            sys.exit(f"this did not happen within {WAIT_S} s: {what}")
        time.sleep(0.01)


def run(pool: limpet.Pool, seconds: float) -> bool:
    rendered, shared = pool.array("rendered", WORKERS + 1), pool.array("shared", WORKERS + 1)
    answers, wrong, again = (pool.counter(name) for name in ("answers", "wrong", "again"))
    children: list[int] = []
    with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_address[1]
        try:
            for number in range(WORKERS):
                children.append(fork(lambda: serve(server, pool, number)))  # noqa: B023
            visitors = fork(lambda: visit(port, pool))
            children.append(visitors)
            until("each worker answers with a page of another one", lambda: all(shared[:WORKERS]))

            victim = max(range(WORKERS), key=lambda number: rendered[number])
            os.kill(children[victim], signal.SIGKILL)
            os.waitpid(children[victim], 0)
            children[victim] = fork(lambda: serve(server, pool, WORKERS))
            print(f"worker {victim} of {WORKERS} was killed, and replaced by worker {WORKERS}")
            before = answers.value
            end = time.monotonic() + seconds
            while goes_on(end):
                time.sleep(0.05)
            until("the new worker answers with pages of others", lambda: shared[WORKERS] > 0)
            until("answers go on", lambda: answers.value > before)

            pool.event("closing").set()
            children.remove(visitors)
            well = os.waitpid(visitors, 0)[1] == 0
            pages = [get(port, f"/page/{number}") for number in range(PAGES)]
            living = [os.waitpid(child, os.WNOHANG) == (0, 0) for child in children]
        finally:
            for child in children:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
    kept = sum(by == victim for _, _, by in pages)
    print(f"{answers.value} answers, {wrong.value} wrong; {again.value} requests were made again")
    pages, others = list(rendered), list(shared)
    print(f"pages rendered by each worker: {pages}; answers with another's page: {others}")
    print(f"pages in the cache that the killed worker had rendered: {kept}")
    pool.recover()
    leaked = pool.audit()["leaked"]
    print(f"{leaked} bytes leaked")
    return well and all(living) and wrong.value == 0 and kept > 0 and leaked == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Web workers with a shared cache, and a kill.")
    parser.add_argument("--seconds", type=float, default=2)
    seconds = parser.parse_args().seconds
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda number, _: ended.append(number))
    with limpet.temporary(node_size="8MiB") as pool:
        return 0 if run(pool, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
