"""A remote client: `RemoteEndpoint`, the verbs of a pool whose memory is behind servers.

The same class as the mapped one for its callers (endpoint/verbs.pyx), and by the rules for phases
that are written there: simulated.py is its specification. A verb goes into the queue of its
server's `Link`. A queue is sent, as one message, when

    a verb with a result is not posted         and its answer is waited for
    `wait`, `pause`, a wait for a futex        and all answers are waited for
    `end`                                      and nothing is waited for, unless verbs are left
                                               that are not of the background
    it would be longer than a message          and its answer is waited for

so a phase is one message to each server, whatever nodes that server has. Order:

    - On one server verbs are done in the order of their calls, whatever they are: the queue, the
      connection, and the server keep it.
    - Writes that were not posted are done before anything that is called later on another server:
      their answer is waited for first (`settle`).
    - What is sent to the control segment is done after all that was called before. If other servers
      have not answered yet, it waits here (`deferred`), at most until the next operation, or a
      quarter of a lease.

Of a pool with one server the last two cost nothing.

Failures
    - A connection that is lost, or does not answer for DEADLINE_S, ends this client's use of the
      server for good: NodeFailed for its nodes, and if it has the control segment, for every verb.
      If changes were not answered, the error says that their outcome is unknown. Nothing is sent a
      second time.
    - If etcd knows the servers (etcd.py), a lost control server ends only the client, `over`: the
      next operation connects to all servers anew (`follow`), and the handle joins as a new client,
      as in a forked child. The old one is evicted by the successor, or by the handle, and with it
      locks and the like are others'. So each thread that has used the handle before has an error:
      the NodeFailed of its operation, or a ClientError in place of its next one (`tell_loss`).
    - If a server is lost that does not have the control segment, the one that has it is asked
      (JUDGE). Only if that has no answer of it either, the nodes count as lost. Else this client
      alone is cut off: it ends all its connections, and is recovered as after a kill.
    - So it does if a server is lost that what is deferred waits for: that is never sent, nor what
      comes after it, so the client could not even give up its pin, for which others wait.
    - The server refuses every change once the state word of this client's slot is another one
      (`guard`): ClientError. So a client that others have declared dead makes no step.
    - Where nodes are away from the control segment, their servers may not know yet that a node is
      out of service (ledger.py). So this client refuses its verbs on a node itself once it has read
      another state word than that by which it uses the node. It reads them whenever it pins.
    - A forked child has connections of its own: it closes its copies of its parent's sockets at
      once, or the server would take a parent that was killed for one that lives.

A signal handler raises in `pause` and `futex_wait` only, as in the verbs of a mapped client: what
is compiled runs none. What is unanswered when an operation was cut off is taken by the next one.

While one thread waits for an answer, others of the process run. One at a time is in an operation
(verbs.pyx); `lock` keeps the thread of the lease out of an exchange.

Copies of control words, and the pin that lasts: clients/lasting.py.
"""

import contextlib
from array import array
import os
import sys
import threading
import time
import weakref

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid

from limpet.shm.endpoint.verbs cimport Counters, words_tagged
from limpet.shm.net.codec cimport Header, arguments_of, padded, room_of, verb
from limpet.shm.net.link cimport Batch, WordsVerb

from limpet.shm.endpoint.layout import COPIED
from limpet.shm.endpoint.states import FORMERLY
from limpet.shm.errors import (
    AddressError,
    ClientError,
    LimpetError,
    NodeFailed,
    ParameterError,
    PoolForeign,
    StoreFull,
)
from limpet.shm.net.link import AGAIN, Lost, serves

cdef u64 CONTROL = <u64>CONTROL_NODE << 40
cdef u64 OFFSET_MASK = (<u64>1 << 40) - 1
cdef enum:
    CHUNK = 32 << 10  # bytes of a long read or write that are one verb
SLEEP_MAX_S = 0.005
LEFT = (
    "a server was lost, and this client with it: what it held, as locks, is others' by now; the next "
    "call goes on as another client"
)

_endpoints = weakref.WeakSet()

cdef extern from "pthread.h":
    int pthread_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil)

cdef int this_process = getpid()


cdef void note_process() noexcept nogil:
    global this_process
    this_process = getpid()


# ORDER: this runs within fork, so before what Python runs in the child.
pthread_atfork(NULL, NULL, note_process)


def _forked():
    for endpoint in list(_endpoints):
        endpoint.unlock()


os.register_at_fork(after_in_child=_forked)


cdef class Tagged:
    """What `post_tagged` finds when its words are there."""


cdef class RemoteEndpoint(Endpoint):
    """One remote client's view of a pool. `messages`, `bytes_sent`: of phases. `down`: nodes that
    have refused a verb since they were attached; `gone`: those whose memory, or server, is lost."""

    def __init__(self):
        self.lock = threading.RLock()
        self.pid = this_process
        self.nodes = [None] * 256
        self.state_of = {}
        self.links = []
        self.deferred, self.awaited = [], {}
        self.posted = {}
        self.images = []
        self.told = threading.local()
        memset(self.down, 0, sizeof(self.down))
        memset(self.gone, 0, sizeof(self.gone))
        memset(self.marked, 0, sizeof(self.marked))
        memset(self.figures_to, 0, sizeof(self.figures_to))
        _endpoints.add(self)

    def unlock(self):
        """In a forked child: a thread that it does not have may have had the lock."""
        self.lock = threading.RLock()

    # ---- setting up ---------------------------------------------------------------------------

    def attach(self, int node, mapping, size, coherent_bytes=None, u64 state=0, fd=-1):
        """Use `node`, of which `mapping` is the `RemoteNode`, as long as its state word is `state`.

        NodeFailed: no server of the pool has it, or its server has other memory."""
        cdef RemoteNode given = mapping
        if self.nodes[node] is not None:
            raise AddressError(f"node {node} is attached already")
        if given.link is None:
            raise NodeFailed(
                node,
                "none of the servers in the pool's URL has it: start its server and name it in the "
                f"URL, or `limpet fail-node {(<Link>given.links[0]).name} {node}`",
            )
        given.endpoint = self
        if given.link not in self.links:
            self.links.append(given.link)
            self.let_beat(given.link)
            if self.guard_addr:
                self.tell_guard([given.link])
        self.nodes[node] = given
        self.state_of[node] = state
        self.down[node] = self.gone[node] = self.marked[node] = False
        if node != CONTROL_NODE:
            try:
                self.expect(node, state)
            except BaseException:
                self.nodes[node] = None
                raise

    def watch_states(self, u64 addr):
        """Nothing: the servers watch them."""

    cpdef int guard(self, u64 addr, u64 word) except -1:
        """From now on the servers refuse this client's changes unless the word at `addr`, of its
        slot, is `word`."""
        self.guard_addr = addr
        self.guard_word = word
        if self.pid == this_process:
            # A server that is lost guards nothing any more.
            with contextlib.suppress(*(() if addr else (NodeFailed,))):
                self.tell_guard(self.alive())
        return 0

    cdef int let_beat(self, Link link) except -1:
        """While an answer of this link is waited for, the lease is renewed."""
        link.control = self.links[0]
        link.beat_s = link.superblock.parameters.lease_us / 4e6
        return 0

    cdef list alive(self):
        return [link for link in self.links if not (<Link>link).failure]

    cdef int tell_guard(self, list links) except -1:
        cdef Verb told
        cdef u64 addr = self.guard_addr
        for link in links:
            told = Verb.__new__(Verb)
            told.node = CONTROL_NODE
            told.part = verb(GUARD, addr or CONTROL, 0, self.guard_word if addr else 0)
            self.put(link, told, True, False)
        self.sync(links)
        return 0

    def expect(self, int node, u64 state):
        self.state_of[node] = state
        self.marked[node] = False
        self.add(
            Verb.__new__(Verb), ATTACH, <u64>node << 40, 0, state, 0, 0, 0, b"", False, False
        )
        self.sync_one((<RemoteNode>self.nodes[node]).link)

    def expected(self, int node):
        return self.state_of.get(node, 0) if self.nodes[node] is not None else 0

    def release(self, int node):
        self.nodes[node] = None

    # ---- nodes away from the control segment --------------------------------------------------

    cdef bint is_apart(self) noexcept:
        """Whether there are servers without the control segment."""
        return len(self.links) > 0 and (<Link>self.links[0]).superblock.parameters.away > 0

    def give_up(self, u64 slot, u64 word):
        """As of `Endpoint`; the client is evicted first where a server cannot look at its slot."""
        if not self.is_apart():
            return Endpoint.give_up(self, slot, word)
        return self.word_of(slot, EVICT, word, 0, 0, 0, 0) == 1

    def make(self, RemoteNode node):
        """New memory for a node that is out of service. NodeFailed: none of our servers has it."""
        if node.link is None or node.link.failure:
            raise NodeFailed(
                node.index,
                "none of the servers in the pool's URL has it: start its server and name it in the "
                "URL",
            )
        cdef Verb queued = Verb.__new__(Verb)
        queued.node = node.index
        queued.part = verb(MAKE, <u64>node.index << 40, 0, node.generation)
        self.put(node.link, queued, True, True)
        self.sync_one(node.link)

    def see_states(self):
        """Read the state words of all nodes, as not all servers do."""
        if not self.is_apart():
            return
        cdef Py_ssize_t count = (<Link>self.links[0]).superblock.parameters.nodes
        words = memoryview(self.read(NODE_STATES, 8 * count)).cast("Q")
        for node in range(count):
            self.see(node, words[node])

    cdef int see(self, int node, u64 word) except -1:
        """Note that this is the state word of a node."""
        if self.nodes[node] is not None and word != <u64>self.state_of[node]:
            self.down[node] = self.marked[node] = True
        return 0

    def detach(self):
        """Send what waits, and close the connections."""
        if self.links and self.pid == this_process:
            with contextlib.suppress(LimpetError):
                self.undefer(self.links[0])
                self.sync(self.links)
            for link in self.links:
                link.close()
        self.links = []
        self.nodes = [None] * 256
        Endpoint.detach(self)

    cpdef object lend(self, u64 addr, u64 size, bint writable):
        raise ParameterError("a remote client has no memory in place: it is on the servers' hosts")

    cpdef int make_durable(
        self, u64 node_from, u64 node_end, u64 control_from, u64 control_end
    ) except -1:
        raise ParameterError("a durable pool is used on the host of its memory")

    cpdef bint lost(self, int node) except -1:
        return self.gone[node & 255]

    cpdef bint failed(self, u64 addr) noexcept:
        cdef u64 index = addr >> 40
        if index > CONTROL_NODE:
            return False
        return self.down[index] or (self.nodes[index] is None and self.is_node(index))

    def back(self, u64 addr, u64 size):
        """Have pages for these bytes of a node; 0: there is no room."""
        return self.word_of(addr, BACK, 0, 0, 0, 0, size)

    def beat(self):
        """Renew the lease, and show what this client has counted."""
        with self.lock:
            if self.links and self.pid == this_process:
                (<Link>self.links[0]).beat(self.figures_now() if self.counting else b"")

    def count_at(self, u64 addr):
        """From now on each beat has the server put the counts into the words at `addr`, which are
        those of this client's slot, and on from what is there; 0: none does any more."""
        cdef bytes found
        cdef const u64* there
        cdef int number
        if not addr:
            self.counting = False
            memcpy(self.figures_to, self._own, sizeof(self._own))  # a forked child has its parent's
            return
        found = self.read(addr, sizeof(self._own))
        there = <const u64*>PyBytes_AS_STRING(found)
        for number in range(FIGURES_COUNT):
            # What was counted before the first slot is counted there, as for a mapped client.
            self.figures_from[number] = there[number] - self.figures_to[number]
        self.counting = True

    cdef bytes figures_now(self):
        cdef u64 words[96]
        cdef int number
        for number in range(FIGURES_COUNT):
            self.figures_to[number] = self._own[number]
            words[number] = self.figures_from[number] + self._own[number]
        return PyBytes_FromStringAndSize(<char*>words, sizeof(words))

    cpdef bint background(self, bint on) noexcept:
        if self.copies is not None:
            self.copies.clear()
        return Endpoint.background(self, on)

    cdef bint is_behind(self) noexcept:
        """Whether the verbs are background work."""
        return self._here != &self._scopes[0]

    cdef int forget(self) except -1:
        """Forget the copies of control words."""
        if self.copies is not None:
            self.copies.clear()
        return 0

    # ---- queues -------------------------------------------------------------------------------

    cdef bint is_node(self, int index) noexcept:
        return len(self.links) > 0 and index < (<Link>self.links[0]).superblock.parameters.nodes

    cdef RemoteNode node_at(self, u64 addr, u64 size):
        """The node of these bytes, if it can be used."""
        cdef u64 index = addr >> 40
        cdef u64 offset = addr & OFFSET_MASK
        cdef RemoteNode node
        if FORMER <= addr < FORMER + CONTROL:
            raise NodeFailed(index & 255, FORMERLY)
        if self.pid != this_process:
            self.reconnect()
        node = self.nodes[index] if index <= CONTROL_NODE else None
        if node is None and index < CONTROL_NODE and self.is_node(index):
            raise NodeFailed(index, "it was not in service when this client looked")
        if node is None or offset > node.bytes_ or size > node.bytes_ - offset:
            raise AddressError(f"{size} bytes at {addr:#x} are on no memory node of this pool")
        if node.link.failure:
            raise self.failure_of(node.link)
        return node

    cdef int put(self, Link link, Verb verb, bint foreground, bint changes) except -1:
        """Put a verb into a queue that has room for it and its result."""
        if (
            link.queue.size + PyBytes_GET_SIZE(verb.part) > ROOM
            or link.queue.room + verb.room > RESULTS_MAX
        ):
            self.sync_one(link)
        return link.put(verb, foreground, changes)

    cdef int add(
        self, Verb queued, int operation, u64 addr, u64 size, u64 first, u64 second, u64 third,
        u64 fourth, bytes data, bint quiet, bint sent
    ) except -1:
        """Queue a verb, whose result `queued` takes."""
        cdef u64 length = size if operation in (READ, WRITE, WRITE_IF, BACK) else 8
        cdef RemoteNode node = self.node_at(addr, length)
        cdef Link link = node.link
        cdef Link other
        if addr >= CONTROL and self.copies and operation != LOAD and addr in COPIED:
            self.copies.clear()
        queued.part = verb(operation, addr, size, first, second, third, fourth, data, quiet)
        queued.room = room_of(operation, size)
        queued.node = node.index
        if self.marked[node.index]:
            if quiet:
                return 0
            raise NodeFailed(node.index, "it is out of service, or has new memory")
        if len(self.links) > 1:
            if node.index == CONTROL_NODE:
                busy = self.busy_beside(link) if sent else []
                for other in busy:
                    self.awaited[other] = other.number + bool(other.queue.verbs)
                if busy:
                    self.deferred.append(queued)
                    return 0
                self.undefer(link)
            self.settle(link)
        return self.put(link, queued, not sent, operation not in (READ, LOAD))

    cdef list busy_beside(self, Link link):
        """The links to other servers on which verbs that were called may not be done yet, or are
        lost, as this look finds."""
        cdef Link other
        found = []
        for other in self.links:
            if other is link or other.failure:
                continue
            if not (other.queue.verbs or other.unanswered):
                continue
            with contextlib.suppress(Lost), self.lock:
                while other.unanswered and other.is_ready():
                    self.collect(other)
            if other.failure or other.queue.verbs or other.unanswered:
                found.append(other)
        return found

    cdef int settle(self, Link link) except -1:
        """Writes that were not posted are done before anything on another server."""
        left = [other for other in self.links if (<Link>other).ordered and other is not link]
        if left:
            self.sync(left)
        return 0

    cdef int undefer(self, Link link) except -1:
        """Queue what was sent to the control segment, now that all before it is done. If a server
        was lost that it waited for, it can never be sent, nor anything after it: leave."""
        cdef Link other
        if self.deferred:
            try:
                self.sync(list(self.awaited))
            except NodeFailed:
                for other in self.awaited:
                    if other.failure and not link.failure:
                        self.leave(
                            f"changes of this client were lost with {other.where}, so it has left"
                        )
                raise
            self.awaited.clear()
            deferred, self.deferred = self.deferred, []
            for queued in deferred:
                self.put(link, queued, False, False)
        return 0

    cdef int send_queue(self, Link link) except -1:
        """Send a queue. Raises Lost."""
        if not link.queue.verbs:
            return 0
        # A change with an answer was not lost, even if the server is, as this message finds.
        while link.unanswered and (len(link.unanswered) >= WINDOW or link.is_ready()):
            self.collect(link)
        self.messages += 1
        self.bytes_sent += link.queue.size + sizeof(Header)
        return link.flush()

    cdef int collect(self, Link link) except -1:
        """Wait for the oldest answer. Raises Lost."""
        cdef Batch batch = link.unanswered[0]
        answer = link.collect_one()
        if self.awaited.get(link, batch.number + 1) <= batch.number:
            del self.awaited[link]
        return self.judge(answer, batch.foreground)

    cdef int sync_one(self, Link link) except -1:
        return self.sync([link])

    cdef int sync(self, list links) except -1:
        """Send the queues of these links, and wait for all answers. Raises the first error."""
        cdef Link link
        with self.lock:
            for link in links:
                try:
                    self.send_queue(link)
                except Lost:
                    pass  # its failure says so, below
            for link in links:
                try:
                    while link.unanswered:
                        self.collect(link)
                except Lost:
                    pass
                link.ordered = False
                if link.failure and self.error is None:
                    self.error = self.failure_of(link)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return 0

    cdef int judge(self, Answer answer, bint foreground) except -1:
        """Note the error of an answer, if there is one."""
        if answer.status == DONE:
            return 0
        for node in answer.undone:
            self.down[node] = True
            self.gone[node] |= answer.lost
        if not foreground or not answer.text or self.error is not None:
            return 0
        if answer.status == NODE_LOST:
            error = NodeFailed(answer.node)
            error.args = (answer.text,)
        else:
            kinds = {FULL: StoreFull, EVICTED: ClientError, BAD_ADDRESS: AddressError}
            error = kinds.get(answer.status, LimpetError)(answer.text)
        self.error = error
        return 0

    cdef object failure_of(self, Link link):
        """The error of a link that is lost; its nodes are, from now on, unless this client is."""
        cdef RemoteNode node
        cdef Link control = self.links[0]
        if link is not control:
            if not link.judged and not control.failure:
                self.have_judged(link, control)
            if control.failure:
                link = control
        nodes = [node.index for node in self.nodes if node is not None and node.link is link]
        for index in nodes:
            self.down[index] = self.gone[index] = True
        why = link.failure if link.failure.endswith(AGAIN) else link.failure + AGAIN
        if control.failure and control.successors is not None:
            why = link.failure.removesuffix(AGAIN)
            return NodeFailed(CONTROL_NODE, f"{why}; the next call looks for its successor")
        if link is control:
            return NodeFailed(
                CONTROL_NODE, why if control.judged else f"{why} when the server is back"
            )
        return NodeFailed(nodes[0] if nodes else CONTROL_NODE, why)

    cdef int have_judged(self, Link link, Link control) except -1:
        """Leave, if the server of the control segment has an answer of the one that is lost: then
        this client alone is cut off from it, and others must not take its nodes for lost."""
        link.judged = True
        with self.lock:
            with contextlib.suppress(Lost):
                while control.unanswered:
                    self.collect(control)
                if not control.judges(link):
                    return 0
            if not control.failure:
                self.leave(
                    f"{link.where} answers there and not here, so this client is cut off from "
                    "it, and has left"
                )
        return 0

    cdef int leave(self, str why) except -1:
        """End all connections: the servers give this client up at once, and others need not wait
        for its lease."""
        cdef Link link
        with self.lock:
            for link in self.alive():
                link.judged = True
                with contextlib.suppress(Lost):
                    link.lose(why + AGAIN)
        return 0

    cpdef bint begin(self) except -1:
        """As of `Endpoint`. True also: the control server is lost, and may have a successor."""
        cdef Link control
        if Endpoint.begin(self):
            return True
        if not self.over and self.links:
            control = self.links[0]
            # ORDER: no other thread is inside; it stays so until `adopted`.
            self.over = bool(control.failure) and control.successors is not None
        if self.over:
            Endpoint.end(self)
        return self.over

    def adopted(self):
        Endpoint.adopted(self)
        self.lives += self.over
        self.over = False

    def tell_loss(self):
        """ClientError, once to each thread: the client that it has used before was lost."""
        if not self.links or (<Link>self.links[0]).successors is None:
            return
        known = getattr(self.told, "lives", None)
        if known != self.lives:
            self.told.lives = self.lives
            if known is not None:
                raise ClientError(LEFT)

    def follow(self):
        """Have connections to the servers of now, for a client that has no slot. Raises as
        `limpet.open` does: there is no successor yet."""
        cdef Link control = self.links[0]
        cdef Link link
        cdef RemoteNode node = self.nodes[CONTROL_NODE]
        nodes = [each for each in self.nodes if each is not None]
        with self.lock:
            made = control.successors()
            uuid = control.superblock.uuid
            if not serves(made[0], CONTROL_NODE) or any(
                [(<Link>link).superblock.uuid != uuid for link in made]
            ):
                for link in made:
                    link.close()
                raise PoolForeign(f"{node.name}: it was destroyed, and is another pool by now")
            # ORDER: from here on `links` tells of which pool we are: not before that is sure.
            for link in node.links:
                link.close()
            self.links, node.links[:] = made[:1], made
            self.deferred, self.images, self.error = [], [], None
            self.awaited.clear()
            self.posted.clear()
            self.pid = this_process
            self.let_beat(made[0])
            for node in nodes:
                link = node.link
                node.follow()
                self.down[node.index] = self.gone[node.index] = False
                if node.link is None:
                    # etcd does not know its server: `failure_of` asks the control server of it.
                    link.judged = False
                    node.link = link
                elif node.link not in self.links:
                    self.links.append(node.link)
                    self.let_beat(node.link)
            for node in nodes:
                if node.index != CONTROL_NODE and not (<Link>node.link).failure:
                    try:
                        self.expect(node.index, self.state_of[node.index])
                    except NodeFailed:
                        self.down[node.index] = self.gone[node.index] = True
            # When the client gives this guard up, so do the servers its slot.
            self.tell_guard(self.alive())

    def reconnect(self):
        """In a forked child: have connections of our own."""
        cdef RemoteNode node
        self.pid = this_process
        self.deferred = []
        self.awaited.clear()
        done = False
        try:
            try:
                self.connect()
            except LimpetError:
                if (<Link>self.links[0]).successors is None:
                    raise
                self.follow()
            done = True
        finally:
            if not done:
                self.pid = 0  # the next verb tries again
                self.over = (<Link>self.links[0]).successors is not None

    cdef int connect(self) except -1:
        """Connect to the servers that we know."""
        cdef RemoteNode node
        for link in self.alive():
            link.connect()
            self.let_beat(link)
        for node in self.nodes:
            if node is not None and node.index != CONTROL_NODE and not node.link.failure:
                self.add(
                    Verb.__new__(Verb), ATTACH, <u64>node.index << 40, 0,
                    self.state_of[node.index], 0, 0, 0, b"", False, False,
                )
        self.tell_guard(self.alive())
        return 0

    # ---- verbs with a result --------------------------------------------------------------------

    cdef u64 word_of(
        self, u64 addr, int operation, u64 first, u64 second, u64 third, u64 fourth, u64 size
    ) except? 0xFEEDFACEDEADBEA7:
        """Do a verb whose result is a word."""
        if operation != BACK:
            aligned(addr)
        cdef WordVerb queued = WordVerb.__new__(WordVerb)
        self.add(queued, operation, addr, size, first, second, third, fourth, b"", False, False)
        self.sync_one((<RemoteNode>self.nodes[addr >> 40]).link)
        return queued.value

    @property
    def gathers(self):
        return True

    cdef WordVerb load_later(self, u64 addr):
        """Queue a load. Not in `posted`, which the thread of the lease clears outside of
        operations, as it ends one of its own; a client that joins looks at others there."""
        cdef WordVerb queued = WordVerb.__new__(WordVerb)
        aligned(addr)
        self._reads(addr, 8, False)
        self.add(queued, LOAD, addr, 0, 0, 0, 0, 0, b"", False, False)
        return queued

    def load_all(self, addrs):
        addrs = list(addrs)
        queued = [self.load_later(addr) for addr in addrs]
        self.wait()
        found = [(<WordVerb>each).value for each in queued]
        for addr, word in zip(addrs, found):
            if is_state(addr):
                self.see((addr - NODE_STATES) >> 3, word)
        return found

    def read_between(self, places, size):
        words = array("Q", bytes(size))
        before = [self.load_later(place) for place in places]
        self.post_read(places[0], words, len(words))
        after = [self.load_later(place) for place in places]
        self.wait()
        first, last = [[(<WordVerb>each).value for each in queued] for queued in (before, after)]
        return first, words.tobytes(), last

    cpdef u64 load(self, u64 addr) except? 0xFEEDFACEDEADBEA7:
        cdef bint copied = (
            addr >= CONTROL and self.copies is not None and not self.is_behind()
            and addr in COPIED
        )
        if copied and addr in self.copies:
            return self.copies[addr]
        self._reads(addr, 8, True)
        cdef u64 found = self.word_of(addr, LOAD, 0, 0, 0, 0, 0)
        if copied and self.copies is not None:
            self.copies[addr] = found
        if is_state(addr):
            self.see((addr - NODE_STATES) >> 3, found)
        return found

    cpdef bytes read(self, u64 addr, Py_ssize_t size):
        cdef BytesVerb queued
        cdef Py_ssize_t at
        self._reads(addr, size, True)
        if size < 0:
            raise AddressError(f"{size} bytes at {addr:#x} are on no memory node of this pool")
        cdef RemoteNode node = self.node_at(addr, size)
        parts = []
        for at in range(0, size, CHUNK):
            queued = BytesVerb.__new__(BytesVerb)
            self.add(queued, READ, addr + at, min(CHUNK, size - at), 0, 0, 0, 0, b"", False, False)
            parts.append(queued)
        if parts:
            self.sync_one(node.link)
        return b"".join([(<BytesVerb>part).found for part in parts])[:size]

    cpdef bytes fetch(self, u64 addr, Py_ssize_t size):
        found = self.read(addr, size)
        self._scope(addr).looks -= 1
        self.wait()
        return found

    cpdef int read_into(self, u64 addr, buffer) except -1:
        target = memoryview(buffer).cast("B")
        target[:] = self.read(addr, len(target))
        return 0

    cpdef int read_words(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        self.read_later(addr, words, count, start)
        self._scope(addr).looks += 1
        return self.sync_one((<RemoteNode>self.nodes[addr >> 40]).link)

    cpdef u64 read_tagged(
        self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag
    ) except? 0xFEEDFACEDEADBEA7:
        self.read_later(first, words, 16, start)
        self.read_later(second, words, 16, start + 16)
        self._scope(first).looks += 1
        self.sync(self.links)
        return words_tagged(words, start, 32, tag)

    cpdef u64 swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, True)
        return self.word_of(addr, SWAP, value, 0, 0, 0, 0)

    cpdef u64 cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7:
        cdef u64 old = self.word_of(addr, CAS, expected, desired, 0, 0, 0)
        self._cas(addr, old != expected, True)
        return old

    cpdef u64 faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, True)
        return self.word_of(addr, FAA, delta, 0, 0, 0, 0)

    cpdef u64 fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, True)
        return self.word_of(addr, FETCH_OR, bits, 0, 0, 0, 0)

    cpdef u64 mcas(
        self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask
    ) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, True)
        return self.word_of(addr, MCAS, compare, swap, compare_mask, swap_mask, 0)

    # ---- writes ---------------------------------------------------------------------------------

    cdef int write_bytes(self, u64 addr, bytes data, bint posted) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef RemoteNode node = self.node_at(addr, size)
        cdef Py_ssize_t at
        self._writes(addr, size)
        for at in range(0, size, CHUNK):
            part = data if size <= CHUNK else data[at : at + CHUNK]
            self.add(
                Verb.__new__(Verb), WRITE, addr + at, PyBytes_GET_SIZE(part), 0, 0, 0, 0, part,
                False, False,
            )
        if not posted:
            node.link.ordered = True
        return 0

    cpdef int write(self, u64 addr, data) except -1:
        return self.write_bytes(addr, bytes(memoryview(data).cast("B")), False)

    cpdef int write_words(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        aligned(addr)
        return self.write_bytes(addr, bytes_of(words, count, start), False)

    cpdef int write_gather(
        self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second
    ) except -1:
        aligned(addr)
        return self.write_bytes(addr, gathered(words, count, first, second), False)

    cpdef int store(self, u64 addr, u64 value) except -1:
        aligned(addr)
        self.add(Verb.__new__(Verb), STORE, addr, 0, value, 0, 0, 0, b"", False, False)
        self._writes(addr, 8)
        (<RemoteNode>self.nodes[addr >> 40]).link.ordered = True
        return 0

    cpdef int store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1:
        self.store(addr, value)
        return self.store(then_addr, then_value)

    # ---- posted verbs ---------------------------------------------------------------------------

    cdef u64 ticketed(
        self, u64 addr, int operation, u64 first, u64 second, u64 third, u64 fourth
    ) except? 0xFEEDFACEDEADBEA7:
        """Post a verb on one word; the ticket of its result."""
        aligned(addr)
        cdef WordVerb queued = WordVerb.__new__(WordVerb)
        self.add(queued, operation, addr, 0, first, second, third, fourth, b"", False, False)
        self.tickets += 1
        self.posted[self.tickets] = queued
        return self.tickets

    cpdef u64 result(self, u64 ticket) except? 0xFEEDFACEDEADBEA7:
        found = self.posted[ticket]
        cdef Tagged tagged
        if type(found) is WordVerb:
            return (<WordVerb>found).value
        tagged = found
        return words_tagged(tagged.words, tagged.start, 32, tagged.tag)

    cpdef u64 post_load(self, u64 addr) except? 0xFEEDFACEDEADBEA7:
        self._reads(addr, 8, False)
        return self.ticketed(addr, LOAD, 0, 0, 0, 0)

    cpdef u64 post_swap(self, u64 addr, u64 value) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, False)
        return self.ticketed(addr, SWAP, value, 0, 0, 0)

    cpdef u64 post_cas(self, u64 addr, u64 expected, u64 desired) except? 0xFEEDFACEDEADBEA7:
        self._cas(addr, False, False)
        return self.ticketed(addr, CAS, expected, desired, 0, 0)

    cdef Py_ssize_t earlier(self, u64 first, Link link) except -2:
        """The place in the queue of the verb with this ticket; -1: it is answered."""
        cdef WordVerb queued = self.posted[first]
        if not queued.arrived and queued.message != link.number + 1:
            self.sync_one(link)
        return -1 if queued.arrived else queued.place

    cpdef u64 post_cas_if(
        self, u64 first, u64 wanted, u64 addr, u64 expected, u64 desired
    ) except? 0xFEEDFACEDEADBEA7:
        cdef Link link = self.node_at(addr, 8).link
        cdef WordVerb refused
        self.make_room(addr, 128)
        cdef Py_ssize_t place = self.earlier(first, link)
        if place >= 0:
            self._cas(addr, False, False)
            return self.ticketed(addr, CAS_IF, place, wanted, expected, desired)
        if (<WordVerb>self.posted[first]).value == wanted:
            return self.post_cas(addr, expected, desired)
        refused = WordVerb.__new__(WordVerb)
        refused.value = ~expected
        refused.arrived = True
        self.tickets += 1
        self.posted[self.tickets] = refused
        return self.tickets

    def post_gather_if(
        self, u64 first, u64 wanted, u64 addr, u64[::1] words, Py_ssize_t count, bytes one, bytes two
    ):
        aligned(addr)
        cdef bytes data = gathered(words, count, one, two)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Link link = self.node_at(addr, size).link
        self.make_room(addr, size + 128)
        cdef Py_ssize_t place = self.earlier(first, link)
        if place < 0 or size > CHUNK:
            if place >= 0:
                self.sync_one(link)
            if (<WordVerb>self.posted[first]).value == wanted:
                return self.write_bytes(addr, data, True)
            return 0
        self._writes(addr, size)
        return self.add(
            Verb.__new__(Verb), WRITE_IF, addr, size, place, wanted, 0, 0, data, False, False
        )

    cdef int make_room(self, u64 addr, Py_ssize_t size) except -1:
        """Have room in the queue, so that a verb and the earlier one are in one message."""
        cdef Link link = self.node_at(addr, 8).link
        if link.queue.size + size > ROOM or link.queue.room + 8 > RESULTS_MAX:
            self.sync_one(link)
        return 0

    cpdef u64 post_faa(self, u64 addr, u64 delta) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, False)
        return self.ticketed(addr, FAA, delta, 0, 0, 0)

    cpdef u64 post_fetch_or(self, u64 addr, u64 bits) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, False)
        return self.ticketed(addr, FETCH_OR, bits, 0, 0, 0)

    cpdef u64 post_mcas(
        self, u64 addr, u64 compare, u64 swap, u64 compare_mask, u64 swap_mask
    ) except? 0xFEEDFACEDEADBEA7:
        self._atomics(addr, False)
        return self.ticketed(addr, MCAS, compare, swap, compare_mask, swap_mask)

    cpdef int post_set(self, u64 addr, u64 bits) except -1:
        self._atomics(addr, False)
        if self.failed(addr):
            raise NodeFailed(addr >> 40, "it has failed")
        aligned(addr)
        return self.add(
            Verb.__new__(Verb), FETCH_OR, addr, 0, bits, 0, 0, 0, b"", True, False
        )

    cpdef int post_read(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        return self.read_later(addr, words, count, start)

    cdef int read_later(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start
    ) except -1:
        """Queue a read into a buffer."""
        cdef Py_ssize_t at
        cdef WordsVerb queued
        checked(words, count, start)
        self._reads(addr, count * 8, False)
        for at in range(0, count, CHUNK // 8):
            queued = WordsVerb.__new__(WordsVerb)
            queued.words = words
            queued.start = start + at
            self.add(
                queued, READ, addr + 8 * at, 8 * min(CHUNK // 8, count - at), 0, 0, 0, 0, b"",
                False, False,
            )
        return 0

    cpdef u64 post_tagged(
        self, u64 first, u64 second, u64[::1] words, Py_ssize_t start, u64 tag
    ) except? 0xFEEDFACEDEADBEA7:
        cdef Tagged tagged = Tagged.__new__(Tagged)
        self.read_later(first, words, 16, start)
        self.read_later(second, words, 16, start + 16)
        tagged.words = words
        tagged.start = start
        tagged.tag = tag
        self.tickets += 1
        self.posted[self.tickets] = tagged
        return self.tickets

    cpdef int post_image(self, Image image, u64 addr, Py_ssize_t count) except -1:
        self.read_later(addr, image.words, count, 0)
        self.images.append(image)
        image.close()
        return 0

    cpdef int post_write(
        self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start=0
    ) except -1:
        aligned(addr)
        return self.write_bytes(addr, bytes_of(words, count, start), True)

    cpdef int post_gather(
        self, u64 addr, u64[::1] words, Py_ssize_t count, bytes first, bytes second
    ) except -1:
        aligned(addr)
        return self.write_bytes(addr, gathered(words, count, first, second), True)

    # ---- the background message of an operation -------------------------------------------------

    cdef int sending(
        self, int operation, u64 addr, u64 size, u64 first, u64 fourth, bytes data, bint atomic
    ) except -1:
        """Send a verb: it is counted with the background, and its node is told of once."""
        cdef Counters* here = self._here
        self._here = &self._scopes[1]
        if atomic:
            self._atomics(addr, False)
        else:
            self._writes(addr, size or 8)
        self._here = here
        self._message(addr)
        aligned(addr)
        return self.add(
            Verb.__new__(Verb), operation, addr, size, first, 0, 0, fourth, data, True, True
        )

    cpdef int send_clear(self, u64 addr, u64 bits) except -1:
        return self.sending(MCAS, addr, 0, 0, bits, b"", True)

    cpdef int send_store(self, u64 addr, u64 value) except -1:
        return self.sending(STORE, addr, 0, value, 0, b"", False)

    cpdef int send_store_two(self, u64 addr, u64 value, u64 then_addr, u64 then_value) except -1:
        self.send_store(addr, value)
        return self.send_store(then_addr, then_value)

    cpdef int send_words(self, u64 addr, u64[::1] words, Py_ssize_t count) except -1:
        data = bytes_of(words, count, 0)
        return self.sending(WRITE, addr, PyBytes_GET_SIZE(data), 0, 0, data, False)

    # ---- the ends of phases and operations ------------------------------------------------------

    cpdef int wait(self) except -1:
        cdef Image image
        try:
            self.sync(self.links if len(self.links) == 1 else self.alive())
        finally:
            if self.images:
                images, self.images = self.images, []
                for image in images:
                    image.open()
        return Endpoint.wait(self)

    cpdef int end(self) except -1:
        try:
            if self.pid == this_process:
                self.finish()
        finally:
            self.posted.clear()
            if self.links and (<Link>self.links[0]).failure:
                error = sys.exc_info()[1]
                if isinstance(error, NodeFailed) and error.node == CONTROL_NODE:
                    self.told.lives = self.lives + 1
            Endpoint.end(self)
        return 0

    cdef int finish(self) except -1:
        """Send what is left, and wait for what is not of the background."""
        cdef Link link
        cdef Batch batch
        left = []
        for link in self.links:
            if link.failure or not (link.queue.verbs or link.unanswered):
                continue
            with self.lock:
                try:
                    self.send_queue(link)
                except Lost:
                    continue
            for batch in link.unanswered:
                if batch.foreground:
                    left.append(link)
                    break
        if left:
            self.sync(left)
        if self.deferred:
            link = self.links[0]
            # One that is lost by now does not answer any more: leave at this look.
            busy = [other for other in self.busy_beside(link) if not (<Link>other).failure]
            if not link.failure and not busy:
                self.undefer(link)
                with contextlib.suppress(Lost), self.lock:
                    self.send_queue(link)
        return 0

    cpdef int pause(self, u64 attempt) except -1:
        if self.links:
            self.undefer(self.links[0])
            self.sync(self.alive())
        self.forget()
        return Endpoint.pause(self, attempt)

    cpdef int futex_wait(self, u64 addr, u32 expected, u64 timeout_us) except -1:
        """Look again and again; a wake is not heard of."""
        end, sleep_s = time.monotonic() + timeout_us / 1e6, 0.0002
        while self.word_of(addr, LOAD, 0, 0, 0, 0, 0) & 0xFFFF_FFFF == expected:
            if time.monotonic() >= end:
                return 0
            time.sleep(min(sleep_s, max(0.0, end - time.monotonic())))
            sleep_s = min(2 * sleep_s, SLEEP_MAX_S)
        return 1

    cpdef int futex_wake(self, u64 addr, int count) except -1:
        """Wake none, as it is for clients of another host: they look again after their timeout."""
        self.sync(self.alive())
        return 0


cdef bint is_state(u64 addr) noexcept:
    """Whether the state word of a node is there."""
    return <u64>NODE_STATES <= addr < <u64>NODE_STATES + 8 * CONTROL_NODE


cdef int aligned(u64 addr) except -1:
    if addr & 7:
        raise AddressError(f"the word at {addr:#x} is not aligned to 8 bytes")
    return 0


cdef int checked(u64[::1] words, Py_ssize_t count, Py_ssize_t start) except -1:
    if count < 1 or start < 0 or count > words.shape[0] - start:
        raise AddressError(f"there are no {count} words from word {start} on in {words.shape[0]}")
    return 0


cdef bytes bytes_of(u64[::1] words, Py_ssize_t count, Py_ssize_t start):
    checked(words, count, start)
    return PyBytes_FromStringAndSize(<char*>&words[start], 8 * count)


cdef bytes gathered(u64[::1] words, Py_ssize_t count, bytes first, bytes second):
    """`count` words, `first` and zeros up to a multiple of 8 bytes, `second`."""
    if first is None or second is None or count < 0 or count > words.shape[0]:
        raise AddressError(f"there are no {count} words in the buffer")
    cdef Py_ssize_t head = 8 * count
    cdef Py_ssize_t length = PyBytes_GET_SIZE(first)
    cdef Py_ssize_t middle = padded(length)
    made = PyBytes_FromStringAndSize(NULL, head + middle + PyBytes_GET_SIZE(second))
    cdef char* at = PyBytes_AS_STRING(made)
    if head:
        memcpy(at, &words[0], head)
    memcpy(at + head, PyBytes_AS_STRING(first), length)
    memset(at + head + length, 0, middle - length)
    memcpy(at + head + middle, PyBytes_AS_STRING(second), PyBytes_GET_SIZE(second))
    return made
