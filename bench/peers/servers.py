"""Peers that are server processes: every operation is a message to them and one back."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import multiprocessing.managers
import shutil
import subprocess
from typing import Any

from limpet.bench.peers.drivers import (
    Connection,
    Directory,
    Driver,
    DriverError,
    Pairs,
    package_missing,
)
from limpet.bench.peers.ycsb import Workload
from limpet.fault.inject.children import die_with_parent


class RedisDriver(Driver):
    """A redis-server of our own: unix socket, no persistence; one connection a process."""

    name = "redis"
    directory: Directory | None = None
    server: subprocess.Popen[str] | None = None

    def missing(self) -> str | None:
        if shutil.which("redis-server") is None:
            return (
                "redis-server is not on the PATH: install the distribution's package "
                "(Debian, Ubuntu: apt-get install redis-server)"
            )
        return package_missing("redis")

    def version(self) -> str:
        server = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        fields = dict(word.split("=", 1) for word in server.stdout.split() if "=" in word)
        client = importlib.metadata.version("redis")
        return f"{fields.get('v', server.stdout.strip())} (client {client})"

    @property
    def socket(self) -> str:
        """The path of the server's socket."""
        assert self.directory is not None
        return str(self.directory.path / "socket")

    def start(self, workload: Workload) -> None:
        self.directory = Directory()
        options = {
            "port": "0",
            "unixsocket": self.socket,
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": str(self.directory.path),
            "daemonize": "no",
            "logfile": "",
            "loglevel": "notice",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.server = subprocess.Popen(
            ["redis-server", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert self.server.stdout is not None
        log = []
        for line in self.server.stdout:
            log.append(line)
            if "ready to accept connections" in line.lower():
                return
        raise DriverError(f"redis-server ended before it was ready; it said: {''.join(log[-5:])}")

    def connect(self) -> Any:
        """A client."""
        import redis

        return redis.Redis(unix_socket_path=self.socket, single_connection_client=True)

    def load(self, pairs: Pairs) -> None:
        with self.connect() as client:
            for start in range(0, len(pairs), 1000):
                client.mset(dict(pairs[start : start + 1000]))

    def attach(self) -> Connection:
        client = self.connect()

        def put_many(pairs: list[tuple[bytes, bytes]]) -> None:
            client.mset(dict(pairs))

        return Connection(
            client.get,
            client.set,
            client.close,
            get_many=client.mget,
            put_many=put_many,
            delete=client.delete,
        )

    def used_memory(self) -> int:
        """Bytes that the server has allocated."""
        with self.connect() as client:
            return int(client.info("memory")["used_memory"])

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.communicate()
            self.server = None
        if self.directory is not None:
            self.directory.remove()
            self.directory = None


class ManagerDriver(Driver):
    """`multiprocessing.Manager().dict()`: a dict in a server process, asked over a unix socket."""

    name = "manager"
    manager: multiprocessing.managers.SyncManager | None = None
    records: Any = None

    def missing(self) -> None:
        return None

    def version(self) -> str:
        return "standard library"

    def start(self, workload: Workload) -> None:
        self.manager = multiprocessing.managers.SyncManager(ctx=multiprocessing.get_context("fork"))
        self.manager.start(initializer=die_with_parent)
        self.records = self.manager.dict()

    def load(self, pairs: Pairs) -> None:
        self.records.update(pairs)

    def attach(self) -> Connection:
        # The proxy opens a new connection in each process that uses it.
        records = self.records
        return Connection(
            records.get,
            records.__setitem__,
            put_many=records.update,
            delete=records.__delitem__,
        )

    def stop(self) -> None:
        self.records = None
        if self.manager is not None:
            self.manager.shutdown()
            self.manager = None
