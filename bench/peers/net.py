"""`limpet bench net`: the price of a message over loopback, and of losing one side.

In each round every subject runs for a moment, one after another, so that all of them meet the same
load. A row has the median over the rounds, and the median of its ratio to the bare TCP round trip
of the same round. `message` is an answer by libfabric alone, from a loop in Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import limpet
from limpet.bench.peers.servers import RedisDriver
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import table, time_text
from limpet.fault.inject.children import end_with_parent
from limpet.shm.errors import LimpetError, NodeFailed, ParameterError, PoolNotFound
from limpet.shm.net.backend import VARIABLE, require_libfabric

if TYPE_CHECKING:
    from rich.table import Table

SECRET: Final = b"of a benchmark, over loopback"
VALUE: Final = b"v" * 64
KEYS: Final = [b"key-%02d" % number for number in range(64)]
WINDOWS: Final = (1, 4, 16, 64)
TCP: Final = "bare TCP"
KINDS: Final = ("race", "swarm")
CLIENTS_MAX: Final = 4
DEADLINE_S: Final = 30.0


@dataclasses.dataclass(frozen=True)
class Row:
    """`messages`: to servers, of one operation; None: not counted. `ratio`: to bare TCP."""

    subject: str
    median_us: float
    least_us: float
    ratio: float
    messages: float | None


@dataclasses.dataclass(frozen=True)
class Crowd:
    """So many clients that do one operation after another at the same time. `median_us`: of one
    operation of one client; `a_second`: operations of all of them."""

    subject: str
    clients: int
    median_us: float
    a_second: float


@dataclasses.dataclass(frozen=True)
class Loss:
    """From the kill of one side to the moment when the other has dealt with it, over some kills."""

    subject: str
    kills: int
    median_ms: float
    least_ms: float
    longest_ms: float


def missing() -> dict[str, str]:
    """The peers that cannot be measured, and why."""
    reason = RedisDriver().missing()
    return {"redis": reason} if reason else {}


def refused() -> str:
    """Why nothing can be measured here; empty: it can."""
    try:
        require_libfabric()
    except LimpetError as error:
        return str(error)
    return ""


class Place:
    """Two pools, one of them of three nodes, and the child processes that serve; all of it ends
    with `ends`, also if it cannot be begun."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        if reason := refused():
            raise ParameterError(reason)
        self.ends = ends
        directory = Path(self.ends.enter_context(tempfile.TemporaryDirectory(prefix="limpet-")))
        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET)
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(secret)
        self.ends.callback(_restore, before)
        self.url = f"shm://bench-{os.getpid()}-net"
        # ORDER: before it is made: a Ctrl-C may come in between.
        self.ends.callback(_remove, self.url)
        limpet.create(self.url, nodes=3, node_size="16MiB", multi_host=True).close()
        self.pid, self.port = self.start(self.serve)

    def serve(self, told: Callable[[int], None]) -> None:
        """A server of the pool."""
        from limpet.shm.net.server import Server

        server = Server(self.url, "127.0.0.1", 0, SECRET)
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        told(server.port)
        server.run()

    def start(self, work: Callable[[Callable[[int], None]], None]) -> tuple[int, int]:
        """A child process that serves at a port: both numbers. It ends with the place, and not by a
        Ctrl-C, which its parent gets, too."""
        out, into = os.pipe()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pid = os.fork()
            if not pid:
                try:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    end_with_parent(parent)
                    work(lambda port: _told(into, port))
                finally:
                    os._exit(0)
            self.ends.callback(_end, pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(into)
        with open(out, "rb") as told:
            return pid, int(told.readline() or 0)

    def open(self) -> Any:
        """The pool, over the network."""
        return limpet.open(f"net://127.0.0.1:{self.port}/{self.url.rpartition('/')[2]}")


def _told(into: int, port: int) -> None:
    os.write(into, b"%d\n" % port)
    os.close(into)


def _remove(url: str) -> None:
    with contextlib.suppress(PoolNotFound):
        limpet.destroy(url)


def _restore(before: str | None) -> None:
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before


def _end(pid: int) -> None:
    """End a child that may be gone already."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def _echo_tcp(told: Callable[[int], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told(listener.getsockname()[1])
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := peer.recv(64):
            peer.sendall(data)


def _echo_messages(told: Callable[[int], None]) -> None:
    from limpet.shm.net.libfabric import Listener

    from limpet.shm.net import wire

    listener = Listener("127.0.0.1", 0)
    told(listener.port)
    domain = listener.domain
    while True:
        for event in domain.wait(1.0):
            if event.kind == wire.REQUEST:
                listener.accept(event.info)
            elif event.kind == wire.MESSAGE:
                event.connection.send(event.data)
            elif event.kind == wire.CLOSED:
                return


def _subjects(place: Place, pool: Any, peers: bool) -> dict[str, Callable[[], object]]:
    """By name, what is measured: one operation."""
    from limpet.shm.net import libfabric

    plain = place.ends.enter_context(
        socket.create_connection(("127.0.0.1", place.start(_echo_tcp)[1]))
    )
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bare = libfabric.connect("127.0.0.1", place.start(_echo_messages)[1], DEADLINE_S)
    place.ends.callback(bare.domain.close)

    def tcp() -> None:
        plain.sendall(VALUE)
        plain.recv(64)

    def message() -> None:
        bare.send(VALUE)
        while not bare.domain.wait(DEADLINE_S):
            pass

    found: dict[str, Callable[[], object]] = {TCP: tcp, "bare message": message}
    endpoint = pool.endpoint
    found["phase of one read"] = lambda: endpoint.read(0, 8)
    for kind in KINDS:
        store = pool.store(kind, kind, capacity=1000)
        store.put_many([(key, VALUE) for key in KEYS])
        found[f"{kind} get"] = functools.partial(store.get, KEYS[0])
        found[f"{kind} update"] = functools.partial(store.update, KEYS[0], VALUE)
        for window in WINDOWS:
            found[f"{kind} {window} gets in a window"] = _window(store, window)
    queue = pool.queue("queue")

    def hand_on() -> None:
        queue.put(VALUE)
        queue.get()

    found["queue put and get"] = hand_on
    accounts = pool.store("rtx-race", "accounts", capacity=100)
    for account in (b"a", b"b"):
        accounts.put(account, b"1000000")

    def move(tx: Any) -> None:
        from_, to = int(tx.get(accounts, b"a")), int(tx.get(accounts, b"b"))
        tx.put(accounts, b"a", b"%d" % (from_ - 1))
        tx.put(accounts, b"b", b"%d" % (to + 1))

    found["transfer"] = lambda: pool.transaction(move)
    if peers and not missing():
        redis = RedisDriver()
        redis.start(Workload(len(KEYS)))
        place.ends.callback(redis.stop)
        client = place.ends.enter_context(redis.connect())
        found["redis-py set"] = lambda: client.set(KEYS[0], VALUE)
        found["redis-py get"] = lambda: client.get(KEYS[0])
    return found


def _window(store: Any, window: int) -> Callable[[], object]:
    def run() -> None:
        with store.pipeline(window) as pipeline:
            for key in KEYS[:window]:
                pipeline.get(key)

    return run


def run(rounds: int, slice_s: float) -> list[Row]:
    """Measure every subject in each of so many rounds, for so long."""
    with contextlib.ExitStack() as ends:
        place = Place(ends)
        pool = ends.enter_context(place.open())
        subjects = _subjects(place, pool, True)
        times: dict[str, list[float]] = {name: [] for name in subjects}
        for work in subjects.values():
            for _ in range(10):
                work()
        for _ in range(rounds):
            for name, work in subjects.items():
                times[name].append(_timed(work, slice_s))
        counts = {name: _messages(pool, work) for name, work in subjects.items()}
    return [
        Row(
            name, statistics.median(found), min(found),
            statistics.median(one / tcp for one, tcp in zip(found, times[TCP], strict=True)),
            counts[name],
        )
        for name, found in times.items()
    ]  # fmt: skip


def _timed(work: Callable[[], object], slice_s: float) -> float:
    """Us of one operation, over a moment."""
    count = 0
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + slice_s:
        work()
        count += 1
    return (now - start) / count * 1e6


def _messages(pool: Any, work: Callable[[], object]) -> float | None:
    """Messages of one operation: the least of some; None: none."""
    found = []
    for _ in range(8):
        before = pool.endpoint.messages
        work()
        found.append(pool.endpoint.messages - before)
    return min(found) or None


# ---- several clients ----------------------------------------------------------------------------


class Worker:
    """A client in a process of its own, with a key of its own, which does what it is told. It ends
    with the place."""

    def __init__(self, place: Place, key: bytes) -> None:
        there, orders = os.pipe()
        answers, told = os.pipe()
        place.start(lambda ready: _work(place, key, ready, there, told))
        os.close(there)
        os.close(told)
        self.orders = place.ends.enter_context(os.fdopen(orders, "wb", 0))
        self.answers = place.ends.enter_context(os.fdopen(answers, "rb"))


def _work(place: Place, key: bytes, ready: Callable[[int], None], orders: int, told: int) -> None:
    with place.open() as pool, open(orders, "rb") as lines:
        stores = {kind: pool.store(kind, kind) for kind in KINDS}
        works: dict[str, Callable[[], object]] = {}
        for kind, store in stores.items():
            works[f"{kind} get"] = functools.partial(store.get, key)
            works[f"{kind} update"] = functools.partial(store.update, key, VALUE)
        ready(0)
        for line in lines:
            name, _, slice_s = line.decode().rpartition(" ")
            os.write(told, b"%d\n" % (_timed(works[name], float(slice_s)) * 1e3))


def crowds(rounds: int, slice_s: float) -> list[Crowd]:
    """Measure 1 to CLIENTS_MAX clients at a time, in each of so many rounds."""
    names = [f"{kind} {what}" for kind in KINDS for what in ("get", "update")]
    found: dict[tuple[str, int], list[list[float]]] = {}
    with contextlib.ExitStack() as ends:
        place = Place(ends)
        pool = ends.enter_context(place.open())
        for kind in KINDS:
            pool.store(kind, kind, capacity=1000).put_many([(key, VALUE) for key in KEYS])
        workers = [Worker(place, key) for key in KEYS[:CLIENTS_MAX]]
        for _ in range(rounds):
            for name in names:
                for clients in range(1, CLIENTS_MAX + 1):
                    for worker in workers[:clients]:
                        worker.orders.write(f"{name} {slice_s}\n".encode())
                    times = [int(one.answers.readline()) / 1e3 for one in workers[:clients]]
                    found.setdefault((name, clients), []).append(times)
    return [
        Crowd(
            name, clients, statistics.median(one for times in rows for one in times),
            statistics.median(sum(1e6 / one for one in times) for times in rows),
        )
        for (name, clients), rows in found.items()
    ]  # fmt: skip


# ---- the loss of a side -------------------------------------------------------------------------


def losses(kills: int) -> list[Loss]:
    """Kill clients, and servers, so many times each."""
    with contextlib.ExitStack() as ends:
        place = Place(ends)
        clients = list(_killed_clients(place, kills))
        servers = list(_killed_servers(place, kills))
    return [
        Loss(subject, kills, statistics.median(found), min(found), max(found))
        for subject, found in (
            ("killed client recovered", clients), ("killed server is NodeFailed", servers),
        )
    ]  # fmt: skip


def _killed_clients(place: Place, kills: int) -> Iterator[float]:
    """Ms from the SIGKILL of a client amid its puts to the end of its recovery."""
    with place.open() as pool:
        pool.store("race", "race", capacity=1000)

        def work(told: Callable[[int], None]) -> None:
            with place.open() as own:
                store = own.store("race", "race")
                for step in range(1 << 30):
                    store.put(KEYS[step % len(KEYS)], b"%d" % step)
                    if step == 200:
                        told(own.client_id & 0xFFFF_FFFF)

        for _ in range(kills):
            pid, _ = place.start(work)
            os.kill(pid, signal.SIGKILL)
            start = time.perf_counter()
            while not pool.recover()["clients"]:
                if time.perf_counter() > start + DEADLINE_S:
                    raise LimpetError(f"client {pid} was not recovered in {DEADLINE_S:g} s")
            yield (time.perf_counter() - start) * 1e3
            os.waitpid(pid, 0)


def _killed_servers(place: Place, kills: int) -> Iterator[float]:
    """Ms from the SIGKILL of a server to NodeFailed of a client that reads all the time."""
    for _ in range(kills):
        pool = place.open()
        os.kill(place.pid, signal.SIGKILL)
        start = time.perf_counter()
        try:
            while time.perf_counter() < start + DEADLINE_S:
                pool.endpoint.read(0, 8)
        except NodeFailed:
            yield (time.perf_counter() - start) * 1e3
        else:
            raise LimpetError(f"the client has not noticed in {DEADLINE_S:g} s")
        finally:
            with contextlib.suppress(NodeFailed):  # its slot cannot be given up over a lost link
                pool.close()
            os.waitpid(place.pid, 0)
            place.pid, place.port = place.start(place.serve)


def rows_table(rows: list[Row]) -> Table:
    """A row for each subject."""
    numbers = ("median", "least", "to bare TCP", "messages")
    shown = table("messages to memory nodes over loopback", "subject", *numbers, right=numbers)
    for one in rows:
        shown.add_row(
            one.subject, time_text(one.median_us * 1e3), time_text(one.least_us * 1e3),
            f"{one.ratio:.2f}", "-" if one.messages is None else f"{one.messages:g}",
        )  # fmt: skip
    return shown


def crowds_table(found: list[Crowd]) -> Table:
    """A row for each number of clients."""
    numbers = ("clients", "median", "a second")
    shown = table("several clients of one server", "subject", *numbers, right=numbers)
    for one in found:
        shown.add_row(
            one.subject, str(one.clients), time_text(one.median_us * 1e3), f"{one.a_second:,.0f}"
        )
    return shown


def losses_table(found: list[Loss]) -> Table:
    """A row for each side."""
    numbers = ("kills", "median", "least", "longest")
    shown = table("the loss of a side", "subject", *numbers, right=numbers)
    for one in found:
        shown.add_row(
            one.subject, str(one.kills), time_text(one.median_ms * 1e6),
            time_text(one.least_ms * 1e6), time_text(one.longest_ms * 1e6),
        )  # fmt: skip
    return shown
