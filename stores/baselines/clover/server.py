"""Clover's metadata process: it knows the chain of versions of each key.

It is no client of the pool: it reads memory, and changes only the epoch there. Its index is private
and lost with it; the next process reads it anew from the heads in memory.

    index    key -> address of its row (store.py)
    free     rows without a key
    idle     keys whose head was seen to be 0, with the epoch of that look and the row's period. A
             client that got this row, or remembers it, may still put a pair there until the epoch
             lies behind every pinned client; only then does the row become free. An ASSIGN of the
             key ends the idleness, and so does a chain, also one that has ended: by the period
    due      rows of chains that clients have reported to be longer

It is a forked process in a session of its own. Of its parent's open files it keeps the regular ones
and device DAX, as memory may be mapped from them, and closes all others (sockets, pipes,
terminals). It listens on an abstract unix socket and holds the lock of the store's metadata process
(place.py), so there is only one. It ends when its last client has left.

Requests are one byte and a key, answers one byte and words; both are packets (SOCK_SEQPACKET).
    LOOKUP   -> address of the key's row, and its words head, period and shortcut; or zeros
    ASSIGN   -> the same; a free row becomes the key's if it has none; zeros: none is free
    NOTICE   no answer: the key's chain has become longer, or ended
    DUE      -> rows of up to DUE_MAX chains to collect, the lowest first
    REBUILD  -> nothing; the index has been read anew
Before it answers DUE or REBUILD, the process reads all notices that clients have sent before. So
the answer to DUE covers every change that was reported. The first byte of an answer is 0, or 1 if a
memory node is lost: then the word is its number.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import stat
import struct
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from limpet.shm.clients.epoch import Grace
from limpet.shm.endpoint.fabric import Endpoint, hash64
from limpet.shm.endpoint.layout import NODE_STATES
from limpet.shm.endpoint.states import IN_SERVICE, node_word
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import AddressError, NodeFailed
from limpet.stores.baselines.clover.place import VersionPlace
from limpet.stores.fusee.links import ENTRY_SIZE, KEY_OFFSET

LOOKUP: Final = 1
ASSIGN: Final = 2
NOTICE: Final = 3
DUE: Final = 4
REBUILD: Final = 5

DUE_MAX: Final = 64
PACKET_MAX: Final = 1 << 17
WORDS: Final = struct.Struct("<4Q")
LONELY_S: Final = 10.0
"""How long a metadata process waits for its first client before it ends."""
# Of a row of a table, in bytes.
PERIOD: Final = 8
SHORTCUT: Final = 16
ROW: Final = 24


def table_of(key: bytes, tables: int) -> int:
    """The table, and so the memory node, of a key."""
    return (hash64(key) >> 32) * tables >> 32


def heads_in(table: bytes) -> Any:
    """The heads of a table, of which these are the bytes."""
    return np.frombuffer(table, dtype="<u8")[:: ROW >> 3]


class Metadata:
    """The index, and the answers to requests."""

    def __init__(self, endpoint: Any, tables: list[int], heads: int) -> None:
        self.endpoint = endpoint
        self.grace = Grace(endpoint)
        self.tables = tables
        self.heads = heads
        self.rebuild()

    def rebuild(self) -> None:
        """Read the index from memory."""
        self.index: dict[bytes, int] = {}
        self.free: list[list[int]] = []
        self.idle: dict[bytes, tuple[int, int]] = {}
        self.due: set[int] = set()
        for table in self.tables:
            try:
                self.free.append(self._read_table(table))
            except NodeFailed:
                self.free.append([])

    def _read_table(self, table: int) -> list[int]:
        heads = heads_in(self.endpoint.read(table, ROW * self.heads))
        for index in np.flatnonzero(heads).tolist():
            row = table + ROW * index
            self.index[self._key_at(row)] = row
        vacant = np.flatnonzero(heads == 0)[::-1].tolist()
        return [table + ROW * index for index in vacant]

    def _key_at(self, row: int) -> bytes:
        """The key of a chain. Its versions change, its key does not."""
        while True:
            word = self.endpoint.load(row)
            at = word & ADDRESS_MASK
            try:
                size = self.endpoint.load(at + ENTRY_SIZE) & 0xFFFF
                key = bytes(self.endpoint.read(at + KEY_OFFSET, size))
            except AddressError:
                key = b""
            # The version was not freed while its head had it, so this is its key.
            if self.endpoint.load(row) == word:
                return key

    def answer(self, request: bytes) -> bytes | None:
        """The answer to a request; None: there is none."""
        kind, key = request[0], request[1:]
        try:
            if kind == LOOKUP:
                return b"\0" + self._state(self._row(key))
            if kind == ASSIGN:
                return b"\0" + self._state(self._assigned(key))
            if kind == REBUILD:
                self.rebuild()
                return b"\0"
            if kind == DUE:
                return b"\0" + self._due()
            if key in self.index:
                self.due.add(self.index[key])
            return None
        except NodeFailed as error:
            return b"\1" + WORDS.pack(error.node, 0, 0, 0)

    def _row(self, key: bytes) -> int:
        """The key's row; 0: it has none. Raises NodeFailed if its table is lost."""
        row = self.index.get(key, 0)
        if not row:
            self.endpoint.load(self.tables[table_of(key, len(self.tables))])
        return row

    def _state(self, row: int) -> bytes:
        if not row:
            return WORDS.pack(0, 0, 0, 0)
        # ORDER: the period before the versions that are good for it.
        period = self.endpoint.load(row + PERIOD)
        shortcut = self.endpoint.load(row + SHORTCUT)
        return WORDS.pack(row, self.endpoint.load(row), period, shortcut)

    def _assigned(self, key: bytes) -> int:
        row = self._row(key)
        if not row:
            table = table_of(key, len(self.tables))
            if not self.free[table]:
                self._reap()
            if not self.free[table]:
                return 0
            row = self.index[key] = self.free[table].pop()
        self.idle.pop(key, None)
        return row

    def _reap(self) -> None:
        """Free the rows whose head is 0 and that no client can be about to use. A client puts a
        pair into the row that it was given for its key, or in which it has seen a chain, since its
        pin."""
        horizon = self.grace.horizon()
        vacant: dict[bytes, int] = {}
        for key, row in self.index.items():
            with contextlib.suppress(NodeFailed):
                # ORDER: the period before the head: the end of a chain counts it up.
                period = self.endpoint.load(row + PERIOD)
                if not self.endpoint.load(row):
                    vacant[key] = period
        # ORDER: after the looks: a client that pins from here on sees no chain there.
        closed = self.grace.close_period()
        before, self.idle = self.idle, {}
        for key, period in vacant.items():
            epoch, known = before.get(key, (closed, period))
            if known != period:
                epoch = closed  # another chain has come and gone
            if epoch < horizon:
                self.free[table_of(key, len(self.tables))].append(self.index.pop(key))
            else:
                self.idle[key] = epoch, period

    def _due(self) -> bytes:
        rows = sorted(self.due)[:DUE_MAX]
        self.due.difference_update(rows)
        return struct.pack(f"<{len(rows)}Q", *rows)


# ---- the process ---------------------------------------------------------------------------------


def start(pool: Any, place: VersionPlace, tables: list[int], heads: int) -> str:
    """Start a metadata process, unless there is one; "", or the error that it met.

    It is a grandchild, so that no zombie is left for this process to wait for.
    """
    out, into = os.pipe()
    with open(out, "rb") as pipe:
        # A signal handler that raises in the child before `_live` would have it go on as a copy of
        # the program.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = os.fork()
            if child == 0:
                _live(pool, place, tables, heads, into)
        finally:
            os.close(into)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.waitpid(child, 0)
        return pipe.read().decode(errors="replace")


def _live(pool: Any, place: VersionPlace, tables: list[int], heads: int, ready: int) -> NoReturn:
    """Run the metadata process. It closes `ready` when it answers, or writes its error there."""
    try:
        os.setsid()
        if os.fork() == 0:
            _detach(ready)
            held = place.listen()
            if held is None:
                os._exit(0)  # another client was faster
            # ORDER: the index is read when no other metadata process can assign heads any more.
            metadata = Metadata(_endpoint(pool), tables, heads)
            held.ready()
            os.close(ready)
            _serve(held.listener, metadata)
    except BaseException:
        os.write(ready, traceback.format_exc().encode()[:4096])
    finally:
        os._exit(0)


def _detach(ready: int) -> None:
    """Keep only the memory of the parent: other processes wait for the end of its pipes."""
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # ORDER: before anything is opened: the parent may have no descriptor left.
    for standard in range(3):
        with contextlib.suppress(OSError):  # the parent has none there
            os.close(standard)
    inherited = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for descriptor in inherited:
        if descriptor > 2 and descriptor != ready and not _is_memory(descriptor):
            os.close(descriptor)


def _is_memory(descriptor: int) -> bool:
    try:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return stat.S_ISREG(os.fstat(descriptor).st_mode) or path.match("/dev/dax*")
    except OSError:
        return False


def _endpoint(pool: Any) -> Any:
    """A view of the pool's memory that belongs to no client."""
    endpoint = Endpoint()
    for segment in pool.segments():
        state = node_word(segment.generation, IN_SERVICE)
        fd = segment.watched_fd
        endpoint.attach(segment.index, segment.map, segment.size, None, state, fd)
    endpoint.watch_states(NODE_STATES)
    return endpoint


def _serve(listener: socket.socket, metadata: Metadata) -> None:
    """Answer requests until every client has left."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        ready = selector.select(LONELY_S)
        if not ready and len(selector.get_map()) == 1:
            return
        for key, _ in ready:
            if key.fileobj is listener:
                client, _ = listener.accept()
                if peer(client)[1] == os.geteuid():
                    selector.register(client, selectors.EVENT_READ)
                else:
                    client.close()
            elif not _converse(key.fileobj, selector, metadata):
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                if len(selector.get_map()) == 1:
                    return


def _converse(client: Any, selector: selectors.BaseSelector, metadata: Metadata) -> bool:
    """Answer one request, if there is one; False when the client has left."""
    try:
        request = client.recv(PACKET_MAX, socket.MSG_DONTWAIT)
        if not request:
            return False
        if request[0] in (DUE, REBUILD):
            _take_notices(selector, metadata)
        answer = metadata.answer(request)
        if answer is not None:
            client.send(answer)
    except BlockingIOError:
        return True  # it was a notice, and has been taken
    except ConnectionError:
        return False
    return True


def _take_notices(selector: selectors.BaseSelector, metadata: Metadata) -> None:
    """Take the notices that wait to be read, up to the first request of each client."""
    for key, _ in selector.select(0):
        client: Any = key.fileobj
        with contextlib.suppress(OSError):  # nothing more is there, or the client has left
            while client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == bytes([NOTICE]):
                metadata.answer(client.recv(PACKET_MAX))


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id at the other end; at a client's end, those of the listener."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid
