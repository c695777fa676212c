"""A client's end of the metadata process: asking it, starting it, and replacing it.

A client that needs the metadata process and finds none starts one. The process ends when its last
client has left, or when it is killed; then the next request starts another, which reads the index
anew. So a client may repeat every request. A metadata process that stops makes every client wait.
After a lease (and a second at least) a waiting client kills it or, in a pool with fence="wait",
names it in the log. It may take READING times as long to read the index.

A client connects only to the process that has the store's lock (place.py). When another process
listens at a name that a metadata process had, no client connects to it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import weakref
from pathlib import Path
from typing import Any, Final

from limpet.shm.clients.liveness import Watcher, start_time
from limpet.shm.descriptors import Descriptor, descriptors_needed
from limpet.shm.errors import NodeFailed, PoolClosed, StoreError
from limpet.shm.uninterrupted import uninterrupted
from limpet.stores.baselines.clover import server
from limpet.stores.baselines.clover.place import VersionPlace
from limpet.stores.baselines.clover.server import PACKET_MAX, WORDS, peer

log = logging.getLogger("limpet")

PATIENCE_S: Final = 1.0
READING: Final = 10
AGAIN_S: Final = 0.002
"""Wait before a refused connection is tried again."""
STARTS_MAX: Final = 50
"""How often a metadata process may end during one request."""


class Remote:
    """The connection of one handle of a store to the store's metadata process."""

    def __init__(self, pool: Any, name: str, word: int, tables: list[int], heads: int) -> None:
        """`word`: of the store's entry in the catalogue; a store that is made anew has another."""
        self.pool = pool
        self.name = name
        self.tables = tables
        self.heads = heads
        self.place = VersionPlace(pool, name, word)
        self.address = ""
        """Name of the socket to which this process last connected."""
        self.patience_s = max(PATIENCE_S, pool.parameters.lease_us / 1e6)
        self.watcher = Watcher()
        self.socket: socket.socket | None = None
        self.descriptor: Descriptor
        self.owner = 0
        """The process whose connection it is; 0: it is not to be used any more."""
        self.pid = 0
        """Of the metadata process."""
        self.waits = 1
        """How many times `patience_s` it may take to answer."""

    def state(self, kind: int, key: bytes) -> tuple[int, ...]:
        """Address of the key's row, its head, period and shortcut: a LOOKUP or an ASSIGN. One round
        trip."""
        return WORDS.unpack(self.ask(kind, key))

    def ask(self, kind: int, key: bytes = b"") -> bytes:
        """The answer of the metadata process. Raises NodeFailed, PoolClosed, StoreError."""
        for _ in range(STARTS_MAX):
            try:
                connection = self._connected()
                # ORDER: first: a late answer must not be taken for the answer to another request.
                self.owner = 0
                connection.send(bytes([kind]) + key)
                answer = self._receive(connection)
                self.owner = os.getpid()
            except ConnectionError:
                self._missed()
                continue
            except OSError as error:
                if not self.pool.closed:
                    raise
                raise PoolClosed(
                    f"{self.pool.url}: this handle was closed; open the pool again"
                ) from error
            self.pool.endpoint.wait()
            if answer[0]:
                node = WORDS.unpack(answer[1:])[0]
                if node < len(self.tables):
                    # Raises NodeFailed with the reason, if this client knows it.
                    self.pool.endpoint.load(self.tables[node])
                raise NodeFailed(node, "the metadata process met it as lost")
            return answer[1:]
        raise StoreError(
            f"{self.pool.url}: the metadata process of {self.name!r} ended {STARTS_MAX} times in "
            "the midst of one request; see the log"
        )

    def tell(self, kind: int, key: bytes) -> None:
        """Send a message without an answer; it may be lost without harm."""
        try:
            connection = self._connected()
            connection.send(bytes([kind]) + key)
        except ConnectionError:
            self._missed()

    @property
    def connected(self) -> bool:
        """Whether this process has a connection."""
        return self.socket is not None and self.owner == os.getpid()

    def close(self) -> None:
        """Leave the metadata process; the last one to leave ends it."""
        # ORDER: first: it is not used again, if a signal handler cuts off the rest.
        self.owner = 0
        if self.socket is not None:
            _close(self.socket, self.descriptor)
            self.socket = None

    def _missed(self) -> None:
        log.warning(
            "%s: the metadata process %d of %r has ended; the next request starts another, which "
            "reads the index anew from memory", self.pool.url, self.pid, self.name,
        )  # fmt: skip
        self.close()

    def _connected(self) -> socket.socket:
        if self.connected and self.descriptor.is_open():
            assert self.socket is not None
            return self.socket
        with descriptors_needed(self.pool.url):
            return self._connect_again()

    def _connect_again(self) -> socket.socket:
        self.close()  # the connection is our parent's, or was closed behind us
        end = time.monotonic() + self.patience_s
        while self.socket is None:
            number, ready = self.place.holder()
            if not number:
                self._start()
                continue
            wrong = self._connect(number, ready)
            # While the lock is held, its holder listens. A lock no longer held is no error.
            if wrong and self.place.holder()[0] == number:
                if time.monotonic() >= end:
                    raise StoreError(f"{self.pool.url}: {wrong}")
                time.sleep(AGAIN_S)
        return self.socket

    def _start(self) -> None:
        wrong = uninterrupted(lambda: server.start(self.pool, self.place, self.tables, self.heads))
        if wrong:
            raise StoreError(
                f"{self.pool.url}: the metadata process of {self.name!r} failed: {wrong}"
            )

    def _connect(self, number: int, ready: bool) -> str:
        """Connect to the metadata process of that number; "", or the reason why we cannot."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(self.place.address(number))
            pid, uid = peer(connection)
            # ORDER: after `connect`. Another process can have the name only without the lock.
            if uid == os.geteuid() and self.place.holder()[0] == number:
                self._use(connection, pid)
                self.waits = 1 if ready else READING
                self.address = self.place.address(number)
                return ""
        except ConnectionRefusedError:
            connection.close()
            return (
                f"the metadata process of {self.name!r} cannot be reached; it is in another "
                "network namespace, and all clients of a clover store must be in one"
            )
        except BaseException:
            self.socket = None  # a signal handler may have raised after it was set
            connection.close()
            raise
        connection.close()
        return (
            f"the metadata process of {self.name!r}, {pid}, is that of another user, {uid}; all "
            "clients of a clover store must be processes of one user"
        )

    def _use(self, connection: socket.socket, pid: int) -> None:
        connection.settimeout(self.patience_s)
        self.pid = pid
        self.owner = os.getpid()
        self.descriptor = Descriptor(connection.fileno(), Path(self.pool.url))
        self.socket = connection
        weakref.finalize(self, _close, connection, self.descriptor).atexit = False

    def _receive(self, connection: socket.socket) -> bytes:
        named = False
        while True:
            try:
                answer = connection.recv(PACKET_MAX)
            except TimeoutError:
                self.waits -= 1
                if self.waits <= 0:
                    self._hurry(named)
                    named = True
                continue
            if not answer:
                raise ConnectionResetError
            self.waits = 1
            return answer

    def _hurry(self, named: bool) -> None:
        """Kill a metadata process that has stopped, or name it once, by the pool's policy."""
        kill = self.pool.parameters.fence == "kill"
        if not named:
            log.warning(
                "%s: %s the metadata process %d of %r: it has not answered for %.3f s",
                self.pool.url, "killing" if kill else "everyone waits for", self.pid, self.name,
                self.patience_s,
            )  # fmt: skip
        started = start_time(self.pid)
        if kill and started is not None:
            self.watcher.kill(self.pid, started)


def _close(connection: socket.socket, descriptor: Descriptor) -> None:
    """Close a connection, unless its number is another file's by now."""
    if not descriptor.is_open():
        connection.detach()
    connection.close()
