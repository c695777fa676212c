"""Phases, as the server does them: `Phases`. A phase is read to its end before its first verb is
done (wire.py); its verbs are those of a mapped client (endpoint/verbs.pyx)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from limpet.shm.net.codec cimport (
    Header,
    Status,
    VerbHead,
    arguments_of,
    empty_message,
    header_of,
    padded,
    room_of,
)

from limpet.shm.errors import AddressError, ClientError, LimpetError, NodeFailed, StoreFull
from limpet.shm.net import wire
from limpet.shm.net.wire import WireError

cdef enum:
    STEPS_MAX = 8192  # verbs in a message: each has 16 bytes at least
    TEXT_MAX = 1024


cdef class Phases:
    """Reads a phase, and does it. `count`: its verbs. `last`: the highest node that they may be on;
    a server without the control segment does nothing there for a client but GUARD."""

    def __cinit__(self):
        if STEPS_MAX * sizeof(VerbHead) < ROOM:
            raise WireError("a message has more verbs than there is room for")
        self._steps = <Step*>malloc(STEPS_MAX * sizeof(Step))
        if self._steps == NULL:
            raise MemoryError
        self.last = CONTROL_NODE

    def __dealloc__(self):
        free(self._steps)

    cpdef int read(self, bytes message) except -1:
        """Read the verbs of a message. WireError: it contradicts itself."""
        header_of(message)
        cdef const char* at = PyBytes_AS_STRING(message) + sizeof(Header)
        cdef const char* end = PyBytes_AS_STRING(message) + PyBytes_GET_SIZE(message)
        cdef VerbHead* head
        cdef Step* step
        cdef Py_ssize_t given, length
        cdef int number
        self._message = message
        self.count = self._room = 0
        while at < end:
            head = <VerbHead*>at
            if end - at < <Py_ssize_t>sizeof(VerbHead):
                raise WireError("half of a verb")
            number = arguments_of(head.operation)
            if number < 0 or head.zero or head.flags & ~QUIET:
                raise WireError(
                    f"operation {head.operation} with flags {head.flags:#x} is no verb"
                )
            given = 8 * number
            length = padded(head.size) if head.operation in (WRITE, WRITE_IF) else 0
            at += sizeof(VerbHead)
            if given + length > end - at:
                raise WireError("half of a verb")
            step = &self._steps[self.count]
            step.operation = head.operation
            step.quiet = head.flags & QUIET
            step.size = head.size
            step.addr = head.addr
            step.word = 0
            memcpy(step.arguments, at, given)
            step.data = at + given
            if step.operation in (CAS_IF, WRITE_IF) and not (
                step.arguments[0] < <u64>self.count
                and self._steps[step.arguments[0]].operation != READ
                and room_of(self._steps[step.arguments[0]].operation, 0) == 8
            ):
                raise WireError("a verb depends on one that has no word, or is not before it")
            at += given + length
            self._room += room_of(step.operation, step.size)
            if self._room > RESULTS_MAX:
                raise WireError(f"a phase with more than {RESULTS_MAX} bytes of results")
            self.count += 1
        return 0

    cpdef bytes do(self, Endpoint endpoint, object session):
        """Do the phase that was read; its answer. `session`: does GUARD, ATTACH, BACK, EVICT and
        MAKE."""
        cdef bytes made = empty_message(
            ANSWER, header_of(self._message).number, sizeof(Status) + self._room
        )
        cdef char* at = PyBytes_AS_STRING(made) + sizeof(Header)
        cdef Status* status = <Status*>at
        cdef char* result = at + sizeof(Status)
        cdef Py_ssize_t number, room
        cdef u64 node
        cdef int failed = DONE
        cdef int lost_node = 0
        cdef Step* step
        undone = set()
        why = ""
        memset(at, 0, sizeof(Status))
        for number in range(self.count):
            step = &self._steps[number]
            node = step.addr >> 40
            room = room_of(step.operation, step.size)
            try:
                if node > self.last and (node > CONTROL_NODE or step.operation != GUARD):
                    raise AddressError(f"{step.addr:#x} is on no memory node of this server")
                if undone and node in undone:
                    raise NodeFailed(node, "an earlier verb of the phase has found it so")
                self._do(endpoint, step, result, session)
            except NodeFailed as error:
                memset(result, 0, room)
                step.word = 0
                undone.add(node)
                if not step.quiet and failed == DONE:
                    failed, lost_node, why = NODE_LOST, error.node, str(error)
            except LimpetError as error:
                failed, why = status_of(error), str(error)
                break
            result += room
        self._message = None
        if failed == DONE and not undone:
            return made
        return refused(made, result, failed, lost_node, undone, why, endpoint)

    cdef int _do(self, Endpoint endpoint, Step* step, char* result, object session) except -1:
        """Do one verb. `result`: where its result goes."""
        cdef u64 addr = step.addr
        cdef u64* given = step.arguments
        cdef int operation = step.operation
        cdef bytes found
        if operation == READ:
            found = endpoint.read(addr, step.size)
            memcpy(result, PyBytes_AS_STRING(found), step.size)
            memset(result + step.size, 0, padded(step.size) - step.size)
            return 0
        if operation == WRITE or (
            operation == WRITE_IF and self._steps[given[0]].word == given[1]
        ):
            endpoint.write(addr, PyBytes_FromStringAndSize(step.data, step.size))
            return 0
        if operation == LOAD:
            step.word = endpoint.load(addr)
        elif operation == CAS:
            step.word = endpoint.cas(addr, given[0], given[1])
        elif operation == CAS_IF:
            if self._steps[given[0]].word == given[1]:
                step.word = endpoint.cas(addr, given[2], given[3])
            else:
                step.word = ~given[2]
        elif operation == MCAS:
            step.word = endpoint.mcas(addr, given[0], given[1], given[2], given[3])
        elif operation == STORE:
            endpoint.store(addr, given[0])
        elif operation == SWAP:
            step.word = endpoint.swap(addr, given[0])
        elif operation == FAA:
            step.word = endpoint.faa(addr, given[0])
        elif operation == FETCH_OR:
            step.word = endpoint.fetch_or(addr, given[0])
        elif operation == GUARD:
            session.guard(addr, given[0])
        elif operation == ATTACH:
            session.attach(addr >> 40, given[0])
        elif operation == BACK:
            step.word = session.back(addr, step.size)
        elif operation == EVICT:
            step.word = session.evict(addr, given[0])
        elif operation == MAKE:
            session.make(addr >> 40, given[0])
        if room_of(operation, step.size):
            memcpy(result, &step.word, 8)
        return 0


cdef int status_of(object error) except -1:
    for kind, status in (
        (StoreFull, FULL), (ClientError, EVICTED), (AddressError, BAD_ADDRESS),
    ):
        if isinstance(error, kind):
            return status
    return REFUSED


cdef bytes refused(
    bytes made, char* end, int failed, int node, set undone, str why, Endpoint endpoint
):
    """The answer to a phase that was not done as a whole; `made` has its results up to `end`."""
    cdef Py_ssize_t size = end - PyBytes_AS_STRING(made) - sizeof(Header)
    text = why.encode()[:TEXT_MAX]
    answer = empty_message(
        ANSWER, header_of(made).number, size + NODES_SIZE + len(text)
    )
    cdef char* at = PyBytes_AS_STRING(answer) + sizeof(Header)
    memcpy(at, PyBytes_AS_STRING(made) + sizeof(Header), size)
    cdef Status* status = <Status*>at
    # DONE here: of verbs that are quiet, whose client asks for no error.
    status.status = failed if failed != DONE else NODE_LOST
    status.lost = any(endpoint.lost(each) for each in undone)
    status.node = node
    status.said = len(text)
    memcpy(at + size, PyBytes_AS_STRING(wire.node_bits(undone)), NODES_SIZE)
    memcpy(at + size + NODES_SIZE, PyBytes_AS_STRING(text), len(text))
    return answer
