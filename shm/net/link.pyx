"""The connection of a remote client to one server, `Link`; and what a server has, `RemoteNode`.

A link is the client's side of net/wire.py: it shows the secret, numbers phases, and takes their
answers in order. A connection that is lost, or does not answer for DEADLINE_S, is lost for good.

Signal handlers of Python run between two bytecodes, so none runs while a link exchanges messages:
an exchange that has begun goes to its end, and what a handler raises goes on then.
"""

import contextlib
import os
import secrets
import socket
import weakref

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy
from posix.unistd cimport getpid

from limpet.shm.net.codec cimport Header, answered, empty_message, header_of, message
from limpet.shm.net.libfabric cimport Connection, Event

from limpet.shm.backends.superblock import unpack
from limpet.shm.errors import ClientError, PoolNotFound
from limpet.shm.net import libfabric, wire
from limpet.shm.net.codec import opened

DEADLINE_S = 10.0
CONNECT_S = 5.0
AGAIN = "; open the pool again"
UNKNOWN = (
    "; changes of this client were not answered, so the operation that it was in may have happened "
    f"or not{AGAIN}"
)


class Lost(Exception):
    """A link is lost."""


cdef class Verb:
    """A verb in a queue, without a result. `part`: as it goes into a message; `room`: bytes of its
    result; `message` and `place`: the number of the message that it is in, and its place there."""

    cdef int take(self, const char* found) except -1:
        """Take the result."""
        return 0


cdef class WordVerb(Verb):
    """One whose result is a word."""

    cdef int take(self, const char* found) except -1:
        memcpy(&self.value, found, 8)
        self.arrived = True
        return 0


cdef class BytesVerb(Verb):
    """One whose result is bytes."""

    cdef int take(self, const char* found) except -1:
        self.found = PyBytes_FromStringAndSize(found, self.room)
        return 0


cdef class WordsVerb(Verb):
    """One whose result goes into a buffer, which its caller has checked, from word `start` on."""

    cdef int take(self, const char* found) except -1:
        memcpy(&self.words[self.start], found, self.room)
        return 0


cdef class Batch:
    """The verbs of one message. `foreground`: whether the operation has to wait for the answer."""

    def __cinit__(self):
        self.verbs = []


cdef class Link:
    """The connection to one server, its queue, and the phases that are not answered. `failure`: why
    it is lost. `pid`: the process whose connection it is. `ordered`: whether writes that were not
    posted may not be done yet. `judged`: the server of the control segment was asked about it.
    `control`: the link to that server, once this one is an endpoint's; it has a beat each `beat_s`
    while an answer is waited for. `successors`: of the link to that server, connects to all servers
    anew when it is lost; or None."""

    def __init__(self, host, port, name, secret, patience_s=CONNECT_S, side=b"client"):
        self.patience_s = patience_s
        self.side = side
        self.host = host
        self.port = port
        self.name = name
        self.secret = secret
        self.where = f"net://{host}:{port}/{name}"
        self.failure = ""
        self.connect()
        _links.add(self)

    def connect(self):
        """Connect, and show each other the secret. Raises PoolNotFound, ClientError."""
        self.queue = Batch()
        self.unanswered = []
        self.control = None  # no beat before the proof
        self.number = 0
        self.pid = getpid()
        self.ordered = False
        try:
            before = libfabric.sockets_to(self.host, self.port)
            self.connection = libfabric.connect(self.host, self.port, self.patience_s)
        except socket.gaierror as error:
            raise PoolNotFound(
                f"{self.where}: the name {self.host} is not known ({error.strerror})"
            ) from error
        except libfabric.FabricError as error:
            raise PoolNotFound(f"{self.where}: no server answers there ({error})") from error
        try:
            self._introduce()
        except BaseException:
            self.connection.domain.close()
            raise
        self.sockets = libfabric.sockets_to(self.host, self.port) - before

    def _introduce(self):
        nonce, name = secrets.token_bytes(NONCE_SIZE), self.name.encode()
        challenge = self._expect(CHALLENGE)
        proof = wire.proof(self.secret, self.side, challenge, nonce, name)
        self.connection.send(message(PROOF, 0, nonce + proof + name))
        welcome = self._expect(WELCOME)
        end = PROOF_SIZE + NODES_SIZE
        expected = wire.proof(self.secret, b"server", challenge, nonce, name)
        if len(welcome) != end + SUPERBLOCK_SIZE or not wire.is_proof(
            welcome[:PROOF_SIZE], expected
        ):
            raise ClientError(f"{self.where}: the server has another secret ({wire.IN_FILE})")
        self.nodes = wire.nodes_of(welcome[PROOF_SIZE:end])
        self.superblock = unpack(welcome[end:], self.where)

    def _expect(self, kind):
        try:
            found, _, body = opened(self.receive(now_s() + self.patience_s))
        except Lost as error:
            raise ClientError(f"{self.where} does not let this client in: {error}") from error
        if found == REFUSAL:
            raise ClientError(f"{self.where}: {body.decode(errors='replace')}")
        if found != kind:
            raise wire.WireError(f"{self.where}: the server sends what is not expected")
        return body

    cpdef bytes receive(self, double deadline):
        """The next message. Raises Lost."""
        cdef Event event
        cdef list found
        cdef Py_ssize_t at
        cdef double left_s
        domain = self.connection.domain
        while True:
            left_s = deadline - now_s()
            found = domain.wait(left_s if self.control is None else min(left_s, self.beat_s))
            for at in range(len(found)):
                event = found[at]
                if event.kind == MESSAGE:
                    if at + 1 < len(found):
                        domain.pending[:0] = found[at + 1 :]
                    return event.data
                if event.kind == CLOSED:
                    raise Lost(event.data)
            if self.connection.closed:
                raise Lost(self.connection.closed)
            if now_s() >= deadline:
                raise Lost(f"no answer for {DEADLINE_S:g} s")
            if self.control is not None:
                # The thread of the lease is kept out meanwhile; others must not take a client that
                # waits for a silent server for one that stands still.
                self.control.beat(b"")

    def ask(self, int kind, bytes body, int expected):
        """Send a message outside of phases; the body of its answer, of the kind that is expected.
        ClientError: there is none, or a refusal."""
        if not self.connection.send(message(kind, 0, body)):
            raise ClientError(f"{self.where} takes no messages")
        return self._expect(expected)

    # ---- phases ---------------------------------------------------------------------------------

    cdef int put(self, Verb verb, bint foreground, bint changes) except -1:
        """Put a verb into the queue, which has room for it and its result."""
        batch = self.queue
        verb.message = self.number + 1
        verb.place = len(batch.verbs)
        batch.size += PyBytes_GET_SIZE(verb.part)
        batch.room += verb.room
        batch.foreground |= foreground
        batch.changes |= changes
        batch.verbs.append(verb)
        return 0

    cdef int flush(self) except -1:
        """Send what is in the queue. Raises Lost."""
        cdef Verb verb
        cdef Py_ssize_t size
        if self.failure:
            raise Lost(self.failure)
        batch = self.queue
        self.queue = Batch.__new__(Batch)
        self.number += 1
        batch.number = self.number
        self.unanswered.append(batch)
        made = empty_message(PHASE, self.number, batch.size)
        cdef char* at = PyBytes_AS_STRING(made) + sizeof(Header)
        for verb in batch.verbs:
            size = PyBytes_GET_SIZE(verb.part)
            memcpy(at, PyBytes_AS_STRING(verb.part), size)
            at += size
        if not self.connection.send(made):
            self.lose(self.connection.closed or "the server takes no messages")
        return 0

    cdef Answer collect_one(self):
        """Wait for the answer to the oldest phase. Raises Lost."""
        cdef Batch batch = self.unanswered[0]
        cdef Answer answer = None
        cdef Verb verb
        cdef Header* header
        cdef Py_ssize_t at = 0
        try:
            found = self.receive(now_s() + DEADLINE_S)
            header = header_of(found)
            if header.kind == REFUSAL:
                raise Lost(found[sizeof(Header):].decode(errors="replace"))
            if header.kind != ANSWER or header.number != batch.number:
                raise Lost(
                    f"message {header.number} of kind {header.kind} is not the answer to phase "
                    f"{batch.number}"
                )
            answer = answered(found)
            if answer.status == DONE and answer.size != batch.room:
                raise Lost(f"{answer.size} bytes of results in place of {batch.room}")
        except (Lost, wire.WireError) as error:
            self.lose(str(error))
        del self.unanswered[0]
        for verb in batch.verbs:
            if verb.room and at + verb.room <= answer.size:
                if answer.status == DONE or verb.node not in answer.undone:
                    verb.take(answer.at + at)
            at += verb.room
        return answer

    cdef bint is_ready(self) except -1:
        """Whether `collect_one` would not wait."""
        domain = self.connection.domain
        domain.pending[:0] = found = domain.drain()
        return bool(found)

    cdef bint judges(self, Link other) except -1:
        """Whether that server answers this one, and so is not lost. No phase is under way. Raises
        Lost."""
        kind, body = 0, b""
        try:
            if self.connection.send(message(JUDGE, 0, f"{other.host}:{other.port}".encode())):
                kind, _, body = opened(self.receive(now_s() + DEADLINE_S))
            if kind != VERDICT or len(body) != 1:
                raise Lost(f"it does not say whether {other.where} answers it")
        except (Lost, wire.WireError) as error:
            self.lose(str(error))
        return body == b"\1"

    cdef int beat(self, bytes figures) except -1:
        """Show that this client lives, and what it has counted."""
        if not self.failure:
            self.connection.send(message(BEAT, 0, figures))
        return 0

    cdef int lose(self, str why) except -1:
        """Give the link up. Raises Lost."""
        cdef Batch batch
        changes = False
        for batch in self.unanswered:
            changes = changes or batch.changes
        self.failure = f"the connection to {self.where} is lost: {why}{UNKNOWN if changes else ''}"
        self.unanswered = []
        self.queue = Batch()
        self.connection.domain.close()
        raise Lost(self.failure)

    def close(self):
        """Close it. May be called twice; in a forked child, which has no part in it."""
        if not self.failure and self.pid == getpid():
            self.failure = f"the connection to {self.where} was closed"
            self.connection.domain.close()

    def orphan(self):
        """In a forked child: let go of the parent's connection, without a word to the server."""
        for fd, device, inode in self.sockets:
            with contextlib.suppress(OSError):
                found = os.fstat(fd)
                if (found.st_dev, found.st_ino) == (device, inode):
                    os.close(fd)
        _orphans.append(self.connection)
        self.sockets = set()


_links = weakref.WeakSet()
_orphans = []
"""Connections of the parent: libfabric's objects must not be closed in a child."""


def _forked():
    for link in list(_links):
        if not link.failure:
            link.orphan()


os.register_at_fork(after_in_child=_forked)


cdef class RemoteNode:
    """A memory node, or the control segment, that a server has: in the place of a `MemoryNode`.
    `link`: None if no server has it."""

    descriptor = None
    address = 0
    fd = watched_fd = -1
    remote = zeroed = True

    def __init__(self, links, index, size, generation=0):
        self.links = links
        self.index = index
        self.size = size
        self.bytes_ = size
        self.generation = generation
        self.follow()

    @property
    def map(self):
        return self

    def follow(self):
        """Use the servers that `links` leads to by now."""
        self.link = next((link for link in self.links if serves(link, self.index)), None)
        self.name = (
            f"{self.links[0].where} "
            f"{'control' if self.index == CONTROL_NODE else f'node {self.index}'}"
        )

    def sibling(self, index, size, generation):
        """Another node of the same pool."""
        return RemoteNode(self.links, index, size, generation)

    def stat_size(self):
        """Its size: only its server knows whether it was truncated."""
        return self.size

    def back(self, offset, size):
        """As of `MemoryNode`; the server does it."""
        return bool(self.endpoint.back(<u64>self.index << 40 | offset, size))

    def close(self):
        """Close the connections, of the control segment, which is closed last."""
        if self.index == CONTROL_NODE:
            for link in self.links:
                link.close()


def serves(link, index):
    """Whether this link leads to that node, or to the control segment."""
    return index in link.nodes
