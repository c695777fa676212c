"""Django under gunicorn, or FastAPI under uvicorn: four workers share a cache, with kills.

    pip install 'limpet[examples]'
    python examples/frameworks/run.py django --seconds 20
    python examples/frameworks/run.py fastapi --seconds 20

The server is started as on a site, on a socket on 127.0.0.1 that this program has opened. A second
process asks for pages by some threads and looks whether they are right. Each second a worker that
has opened the pool is killed by SIGKILL, unless it is the only one, and the server starts another
one. A request whose worker was killed is made again. At the end the pool is looked at: nothing
leaks, and no page is stuck.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

import limpet

WORKERS = 4
VISITORS = 8
PAGES = 200
WAIT_S = 60
HERE = Path(__file__).resolve().parent


def command(site: str, fd: int) -> list[str]:
    """The command that serves a site on this socket."""
    if site == "django":
        return ["gunicorn", "-w", str(WORKERS), "-b", f"fd://{fd}", "--log-level", "critical",
                "django_site:application"]  # fmt: skip
    return ["uvicorn", "--workers", str(WORKERS), "--fd", str(fd), "--log-level", "critical",
            "fastapi_site:app"]  # fmt: skip


def get(port: int, number: int) -> tuple[int, str, str]:
    """Status and text of a page, and the worker that has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", f"/page/{number}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("X-Worker", "")
    finally:
        connection.close()


def visit(port: int, seconds: float) -> None:
    """Ask for pages by several threads, and print what came of it, as JSON."""
    end = time.monotonic() + seconds
    times: list[float] = []
    wrong: list[str] = []
    workers: set[str] = set()
    again = [0]

    def visitor() -> None:
        while time.monotonic() < end:
            number = min(int(random.paretovariate(0.8)), PAGES) - 1
            began = time.monotonic()
            try:
                status, body, worker = get(port, number)
            except (OSError, http.client.HTTPException):
                again[0] += 1
                continue
            times.append(time.monotonic() - began)
            workers.add(worker)
            if (status, body) != (200, f"<h1>page {number}</h1>"):
                wrong.append(f"{number}: {status} {body!r}")

    threads = [threading.Thread(target=visitor) for _ in range(VISITORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    print(json.dumps({
        "answers": len(times), "wrong": wrong[:5], "again": again[0], "workers": len(workers),
        "median_ms": quantile(times, 50), "p99_ms": quantile(times, 99),
    }))  # fmt: skip


def quantile(times: list[float], percent: int) -> float:
    """ms; `times` are sorted, in seconds."""
    return 1000 * times[len(times) * percent // 100] if times else 0.0


def workers_of(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The server's workers."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(server.pid).children()
            if "resource_tracker" not in " ".join(child.cmdline())
        ]
    return []


def until_served(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until all workers are there, and pages are."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(port, 0)[0] == 200 and len(workers_of(server)) >= WORKERS:
                return
        time.sleep(0.1)
    sys.exit(f"the site was not served within {WAIT_S} s; is all of limpet[examples] installed?")


def shoot(
    server: subprocess.Popen[bytes], visitors: subprocess.Popen[str], pool: limpet.Pool
) -> int:
    """Kill a worker a second as long as there are visitors; how many."""
    kills = 0
    while visitors.poll() is None:
        time.sleep(1)
        clients = {client["pid"] for client in pool.clients()}
        serving = [worker for worker in workers_of(server) if worker.pid in clients]
        if len(serving) > 1 and visitors.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                random.choice(serving).kill()
                kills += 1
    return kills


def end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers."""
    there = workers_of(server)
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(10)
    server.kill()
    server.wait()
    for child in there:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
            child.wait(10)


def run(site: str, pool: limpet.Pool, seconds: float) -> bool:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        port = listening.getsockname()[1]
        listening.set_inheritable(True)
        fd = listening.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", *command(site, fd)],
            cwd=HERE,
            pass_fds=[fd],
            env={**os.environ, "LIMPET_SITE": pool.url},
            start_new_session=True,
        )
        try:
            until_served(port, server)
            load = [sys.executable, __file__, site, "--load", str(port), "--seconds", str(seconds)]
            with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as visitors:
                kills = shoot(server, visitors, pool)
                found = json.loads(visitors.communicate()[0])
        finally:
            end(server)
    pool.recover()
    pages = pool.cache("pages")
    stats = pages.stats()
    pages.check()
    leaked = pool.audit()["leaked"]
    print(f"{kills} workers were killed; {found['workers']} workers have answered")
    print(f"{found['answers']} answers, {len(found['wrong'])} wrong; {found['again']} made again")
    print(f"median {found['median_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms")
    print(f"{stats['computations']} pages rendered, {stats['hits']} hits; {leaked} bytes leaked")
    return bool(found["answers"] and kills and not found["wrong"] and not leaked)


def main() -> int:
    parser = argparse.ArgumentParser(description="A site whose workers share a cache, and kills.")
    parser.add_argument("site", choices=["django", "fastapi"])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--load", type=int, help="only ask for pages, at this port")
    options = parser.parse_args()
    if options.load:
        visit(options.load, options.seconds)
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with limpet.temporary(node_size="32MiB") as pool:
        return 0 if run(options.site, pool, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
