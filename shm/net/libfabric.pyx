"""libfabric: connected endpoints that send and receive messages (`FI_EP_MSG`), over TCP.

The library is opened when the first connection is made, so limpet is built and imported without it
and without its headers: LIMPET_LIBFABRIC, the path of one; or libfabric.so.1 of the system; or the
one in the wheel of mpich (`pip install limpet[net]`). Version 1.17, or 1.18.1 and later: 1.18.0
spins.

Most of libfabric's calls are inline functions of its headers, which call a function by its place in
a table of the object. So are they here: `function(object, table, place)`. Tables and structures
only ever grow at their ends, as long as the library is libfabric.so.1, which version 2 still is.

    object     table at byte             places
    all        16   fi_ops               close 0, bind 1, control 2
    fabric     24   fi_ops_fabric        domain 0, passive_ep 1, eq_open 2, trywait 4
    domain     24   fi_ops_domain        cq_open 1, endpoint 2
    endpoints  32   fi_ops_cm            getname 1, connect 3, listen 4, accept 5, reject 6
    endpoint   40   fi_ops_msg           recv 0, sendmsg 5
    queues     24   fi_ops_eq, _cq       read 0; readerr: of events 1, of completions 2

    fi_info         caps 8, addr_format 24, dest_addr 56, handle 64, ep_attr 88 (type 0),
                    domain_attr 96 (threading 16, mr_mode 36), fabric_attr 104 (prov_name 16)

A connection's memory, from which the library sends and into which it receives, stays until the
connection is closed. A `Domain` has a queue of completions and one of events, and whoever waits
polls their descriptors. Not thread-safe: callers take turns. Other threads of the process run while
one waits, and no signal handler of Python runs in here.
"""

import contextlib
import errno
import fcntl
import functools
import os
import socket
import stat
import sys
from pathlib import Path

cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strdup

from limpet.shm.errors import LimpetError

cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char*, Py_ssize_t)
    char* PyBytes_AS_STRING(object)
    Py_ssize_t PyBytes_GET_SIZE(object)
    int PyErr_CheckSignals() except -1

cdef extern from "dlfcn.h":
    void* dlopen(const char*, int) nogil
    void* dlsym(void*, const char*) nogil
    const char* dlerror() nogil
    int RTLD_NOW

cdef extern from "signal.h":
    ctypedef struct Handler "struct sigaction":
        pass
    int handle "sigaction" (int, const Handler*, Handler*) noexcept nogil

cdef extern from "time.h":
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*) noexcept nogil
    int CLOCK_MONOTONIC

cdef extern from "poll.h":
    cdef struct pollfd:
        int fd
        short events
        short revents
    int POLLIN
    int poll(pollfd*, unsigned long, int) noexcept nogil

VARIABLE = "LIMPET_LIBFABRIC"
cdef enum:
    API = 1 << 16 | 17
    MSG = 1 << 1
    RECV = 1 << 10
    SEND = 1 << 11
    SOCKADDR_IN = 2
    EP_MSG = 1
    THREAD_SAFE = 1
    # Virtual addresses, allocated, keys of the provider: what needs nothing of callers that only
    # send messages.
    MR_MODE = 1 << 4 | 1 << 5 | 1 << 6
    WAIT_FD = 3
    CQ_FORMAT_MSG = 2
    GETWAIT = 5
    ENABLE = 6
    TYPE_VERSION = 18
    EAVAIL = 259
    CONNREQ = 1
    CONNECTED_EVENT = 2
    SHUTDOWN = 3
    EAGAIN = 11
    SENDMSG = 5

    OPS = 16
    OWN = 24
    CM = 32
    MESSAGES = 40

    SIGNALS = 64

    BATCH = 16
    CQ_SIZE = 4096
    # In a context, beside the number of the connection: a send, not the receive of a buffer.
    SENT = 0x80
    # Of so many sends the library tells of one.
    TOLD = 3
    # Of so many waits one looks at the queue of events in any case.
    PATIENCE = 16

cdef u64 SOURCE = 1ULL << 57
cdef u64 SELECTIVE_COMPLETION = 1ULL << 59
cdef u64 COMPLETION = 1ULL << 24

cdef enum:
    RECEIVES = WINDOW + 2  # buffers of a connection
    SENDS = WINDOW + 2

cdef struct EventQueueAttributes:
    size_t size
    u64 flags
    int wait
    int vector
    void* set

cdef struct CompletionQueueAttributes:
    size_t size
    u64 flags
    int format
    int wait
    int vector
    int condition
    void* set

cdef struct Completion:
    u64 context
    u64 flags
    size_t size

cdef struct CompletionError:
    u64 context
    u64 flags
    size_t size
    void* buffer
    u64 data
    u64 tag
    size_t overflow
    int number
    int provider
    void* details
    size_t details_size
    u64 more[4]

cdef struct QueueEvent:
    void* fid
    void* info
    char data[1024]

cdef struct QueueError:
    void* fid
    void* context
    u64 data
    int number
    int provider
    void* details
    size_t details_size
    u64 more[4]

ctypedef int (*Getinfo)(unsigned int, const char*, const char*, u64, void*, void**) noexcept nogil
ctypedef int (*MakeFabric)(void*, void**, void*) noexcept nogil
ctypedef int (*Make)(void*, void*, void**, void*) noexcept nogil
ctypedef int (*Bind)(void*, void*, u64) noexcept nogil
ctypedef int (*Control)(void*, int, void*) noexcept nogil
ctypedef int (*Plain)(void*) noexcept nogil
ctypedef int (*Connect)(void*, void*, void*, size_t) noexcept nogil
ctypedef int (*Accept)(void*, void*, size_t) noexcept nogil
ctypedef int (*Getname)(void*, void*, size_t*) noexcept nogil
ctypedef void* (*Duplicate)(void*) noexcept nogil
ctypedef void (*Release)(void*) noexcept nogil
ctypedef const char* (*Describe)(int) noexcept nogil
ctypedef const char* (*Show)(const void*, int) noexcept nogil

cdef Getinfo fi_getinfo
cdef MakeFabric fi_fabric
cdef Duplicate fi_dupinfo
cdef Release fi_freeinfo
cdef Describe fi_strerror


class NoLibfabric(LimpetError):
    """There is no libfabric, or none that can be used."""


class FabricError(LimpetError):
    """libfabric refused a call; `number`: the errno."""

    def __init__(self, what, number):
        super().__init__(f"{what}: {text_of(number)}")
        self.number = number


def _candidates():
    """Where the library may be, the best place first."""
    given = os.environ.get(VARIABLE)
    if given:
        return [given]
    return ["libfabric.so.1", str(Path(sys.prefix) / "lib/mpich/libfabric.so.1")]


def refused_version(text):
    """Whether this version of libfabric cannot be used: before 1.17, or 1.18.0."""
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:3]]
    numbers += [0] * (3 - len(numbers))
    return numbers < [1, 17] or numbers == [1, 18, 0]


@functools.cache
def library():
    """Open the library; its name. NoLibfabric: there is none."""
    global fi_getinfo, fi_fabric, fi_dupinfo, fi_freeinfo, fi_strerror
    cdef void* found
    cdef Handlers before
    cdef Show show
    why = ""
    for name in _candidates():
        before = handlers()
        found = dlopen(os.fsencode(name), RTLD_NOW)
        put_back(&before)
        if found == NULL:
            why = why or dlerror().decode(errors="replace")
            continue
        show = <Show>symbol(found, "fi_tostr", name)
        version = show(b" ", TYPE_VERSION).decode()  # of nothing it says nothing
        if refused_version(version):
            why = f"{name} is version {version}; it has to be 1.17, or 1.18.1 or later"
            continue
        fi_getinfo = <Getinfo>symbol(found, "fi_getinfo", name)
        fi_fabric = <MakeFabric>symbol(found, "fi_fabric", name)
        fi_dupinfo = <Duplicate>symbol(found, "fi_dupinfo", name)
        fi_freeinfo = <Release>symbol(found, "fi_freeinfo", name)
        fi_strerror = <Describe>symbol(found, "fi_strerror", name)
        return name
    raise NoLibfabric(
        f"memory nodes over a network need libfabric ({why}): install the system's package "
        f"libfabric1, or limpet[net]; {VARIABLE} names one that is elsewhere"
    )


cdef struct Handlers:
    Handler of[SIGNALS + 1]


cdef Handlers handlers() noexcept:
    """This process's actions at each signal. Some providers (psm) take signals for themselves when
    they are opened, SIGTERM and SIGBUS too, and exit: so their users put the handlers back."""
    cdef Handlers found
    cdef int number
    for number in range(1, SIGNALS + 1):
        handle(number, NULL, &found.of[number])
    return found


cdef void put_back(Handlers* before) noexcept:
    cdef int number
    for number in range(1, SIGNALS + 1):
        handle(number, &before.of[number], NULL)  # refused for those that cannot be taken


cdef double now_s() noexcept:
    """Seconds of the clock of `time.monotonic`."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef void* symbol(void* handle, str name, str library) except NULL:
    found = dlsym(handle, name.encode())
    if found == NULL:
        raise NoLibfabric(f"{library} is no libfabric that can be used: it has no {name}")
    return found


cdef str text_of(int number):
    library()
    return fi_strerror(number).decode(errors="replace")


cdef inline void* pointer_at(void* start, int offset) noexcept:
    return (<void**>(<char*>start + offset))[0]


cdef void* function(void* fid, int table, int place) except NULL:
    """The function at this place of a table of the object; the size of a table is its first word."""
    cdef char* ops = <char*>pointer_at(fid, table)
    if (<size_t*>ops)[0] < <size_t>(8 * (place + 2)):
        raise FabricError("a function of libfabric", errno.ENOSYS)
    return pointer_at(ops, 8 + 8 * place)


cdef int check(Py_ssize_t found, str what) except -1:
    if found < 0:
        raise FabricError(what, -found)
    return 0


cdef int shut(void* fid) except -1:
    (<Plain>function(fid, OPS, 0))(fid)
    return 0


cdef void* info_of(str host, int port, u64 flags) except NULL:
    """An endpoint of the tcp provider with this address: of ours with SOURCE, else a peer's."""
    cdef void* found = NULL
    cdef Handlers before
    cdef int status
    cdef char* domain
    library()
    cdef char* hints = <char*>fi_dupinfo(NULL)
    if hints == NULL:
        raise MemoryError
    try:
        (<u64*>(hints + 8))[0] = MSG
        (<unsigned int*>(hints + 24))[0] = SOCKADDR_IN
        (<unsigned int*>pointer_at(hints, 88))[0] = EP_MSG
        domain = <char*>pointer_at(hints, 96)
        (<unsigned int*>(domain + 16))[0] = THREAD_SAFE
        (<unsigned int*>(domain + 36))[0] = MR_MODE
        (<char**>(<char*>pointer_at(hints, 104) + 16))[0] = strdup(b"tcp")
        before = handlers()
        status = fi_getinfo(API, host.encode(), str(port).encode(), flags, hints, &found)
        put_back(&before)
        check(status, f"{host}:{port}")
        return found
    finally:
        fi_freeinfo(hints)


cdef Event event(int kind, Connection connection, object data, void* info=NULL):
    cdef Event made = Event.__new__(Event)
    made.kind = kind
    made.connection = connection
    made.data = data
    made.info = <u64>info
    return made


@cython.final
cdef class Event:
    """`kind`: MESSAGE, with its `data`; CONNECTED; CLOSED, with the reason as `data`; and REQUEST,
    with `info` in place of a connection."""


@cython.final
cdef class Domain:
    """Connections share it: a fabric, a domain, and the queues of completions and events."""

    def __cinit__(self):
        self.connections = {}
        self.pending = []

    cdef int open(self, void* info) except -1:
        cdef EventQueueAttributes events
        cdef CompletionQueueAttributes completions
        cdef int number
        check(fi_fabric(pointer_at(info, 104), &self.fabric, NULL), "fi_fabric")
        memset(&events, 0, sizeof(events))
        events.size = 256
        events.wait = WAIT_FD
        check(
            (<Make>function(self.fabric, OWN, 2))(self.fabric, &events, &self.fids[1], NULL),
            "fi_eq_open",
        )
        check(
            (<Make>function(self.fabric, OWN, 0))(self.fabric, info, &self.domain, NULL),
            "fi_domain",
        )
        memset(&completions, 0, sizeof(completions))
        completions.size = CQ_SIZE
        completions.format = CQ_FORMAT_MSG
        completions.wait = WAIT_FD
        check(
            (<Make>function(self.domain, OWN, 1))(self.domain, &completions, &self.fids[0], NULL),
            "fi_cq_open",
        )
        self.read_completions = <ReadCompletions>function(self.fids[0], OWN, 0)
        self.read_completion_error = <ReadError>function(self.fids[0], OWN, 2)
        self.read_event = <ReadEvent>function(self.fids[1], OWN, 0)
        self.read_event_error = <ReadError>function(self.fids[1], OWN, 1)
        self.try_wait = <TryWait>function(self.fabric, OWN, 4)
        for number in range(2):
            check(
                (<Control>function(self.fids[number], OPS, 2))(
                    self.fids[number], GETWAIT, &self.descriptors[number]
                ),
                "FI_GETWAIT",
            )
        return 0

    cdef Connection add(self, void* info):
        """A connection to be, which can receive."""
        self.last += 1
        cdef Connection made = Connection.__new__(Connection, self, self.last)
        self.connections[made.number] = made
        try:
            made.open(info)
        except BaseException:
            made.close()
            raise
        return made

    def close(self):
        for connection in list(self.connections.values()):
            connection.close()
        for fid in (<u64>self.fids[0], <u64>self.domain, <u64>self.fids[1], <u64>self.fabric):
            if fid:
                shut(<void*><u64>fid)
        self.fids[0] = self.fids[1] = self.domain = self.fabric = NULL

    cpdef list wait(self, double timeout_s):
        """What has happened; waits at most so long for something."""
        cdef pollfd polled[2]
        cdef int number, timeout_ms
        if self.pending or self.fabric == NULL:
            return self.taken()
        self.turns += 1
        # It makes progress, too: not 0 if there are completions. Each call of the library is a few
        # system calls, so the events are looked at only if there are any, or may be.
        cdef bint events = self.turns % PATIENCE == 0
        if self.try_wait(self.fabric, self.fids, 1) == 0:
            for number in range(2):
                polled[number].fd = self.descriptors[number]
                polled[number].events = POLLIN
                polled[number].revents = 0
            timeout_ms = <int>(timeout_s * 1000) + 1 if timeout_s > 0 else 0
            with nogil:
                poll(polled, 2, timeout_ms)
            events = events or polled[1].revents != 0
        self.look_at_completions()
        # ORDER: after completions: what a peer sent before it closed counts.
        if events:
            self.look_at_events()
        return self.taken()

    def let_handlers_run(self):
        """Run the handlers of signals that have come: nothing else here does."""
        PyErr_CheckSignals()

    cpdef list drain(self):
        """What has happened by now."""
        self.progress()
        return self.taken()

    cdef list taken(self):
        found = self.pending
        if found:
            self.pending = []
        return found

    cdef int progress(self) except -1:
        self.look_at_completions()
        # ORDER: after completions: what a peer sent before it closed counts.
        return self.look_at_events()

    cdef int look_at_completions(self) except -1:
        cdef Completion entries[BATCH]
        cdef Py_ssize_t count = BATCH
        cdef Py_ssize_t number
        while count == BATCH and self.fabric != NULL:
            count = self.read_completions(self.fids[0], entries, BATCH)
            for number in range(count):
                self.note_completion(entries[number].context, entries[number].size)
            if count == -EAVAIL and self.note_error():
                count = BATCH
        return 0

    cdef int look_at_events(self) except -1:
        cdef QueueEvent told
        cdef QueueError error
        cdef unsigned int what = 0
        cdef Py_ssize_t count
        while self.fabric != NULL:
            count = self.read_event(self.fids[1], &what, &told, sizeof(told), 0)
            if count >= 16:
                self.note_event(what, told.fid, told.info)
            elif count == -EAVAIL:
                memset(&error, 0, sizeof(error))
                if self.read_event_error(self.fids[1], &error, 0) <= 0:
                    break
                self.note_closed(self.with_fid(error.fid), text_of(error.number))
            elif self.try_wait(self.fabric, &self.fids[1], 1) == 0:
                break  # and its descriptor is not readable any more
        return 0

    cdef Connection with_fid(self, void* fid):
        cdef Connection connection
        for connection in self.connections.values():
            if connection.fid == fid:
                return connection
        return None

    cdef int note_completion(self, u64 context, size_t size) except -1:
        cdef Connection connection = self.connections.get(context >> 8)
        if connection is None:
            return 0
        if context & SENT:
            connection.freed += TOLD
        else:
            data = connection.received(context & 0x7F, size)
            self.pending.append(event(MESSAGE, connection, data))
        return 0

    cdef bint note_error(self) except -1:
        """Note the error of a completion; False: there is none."""
        cdef CompletionError error
        memset(&error, 0, sizeof(error))
        if self.read_completion_error(self.fids[0], &error, 0) <= 0:
            return False
        self.note_closed(self.connections.get(error.context >> 8), text_of(error.number))
        return True

    cdef int note_event(self, unsigned int what, void* fid, void* info) except -1:
        if what == CONNREQ:
            self.pending.append(event(REQUEST, None, None, info))
        elif what == CONNECTED_EVENT:
            self.pending.append(event(CONNECTED, self.with_fid(fid), None))
        elif what == SHUTDOWN:
            self.note_closed(self.with_fid(fid), "the other side closed it")
        return 0

    cdef int note_closed(self, Connection connection, str why) except -1:
        if connection is not None and not connection.closed:
            connection.closed = why
            self.pending.append(event(CLOSED, connection, why))
        return 0


@cython.final
cdef class Connection:
    """One connected endpoint. `closed`: why it is, or empty. `sent`: messages; `freed`: those of
    which the library needs the buffer no more, as far as it has told."""

    def __cinit__(self, Domain domain, int number):
        self.domain = domain
        self.number = number
        self.closed = ""
        self.memory = <char*>malloc((RECEIVES + SENDS) * MESSAGE_MAX)
        if self.memory == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.fid == NULL:  # else the library may still read and write it
            free(self.memory)

    cdef int open(self, void* info) except -1:
        cdef void* domain = self.domain.domain
        cdef int place
        check((<Make>function(domain, OWN, 2))(domain, info, &self.fid, NULL), "fi_endpoint")
        bind = <Bind>function(self.fid, OPS, 1)
        check(bind(self.fid, self.domain.fids[1], 0), "fi_ep_bind")
        check(bind(self.fid, self.domain.fids[0], RECV), "fi_ep_bind")
        check(bind(self.fid, self.domain.fids[0], SEND | SELECTIVE_COMPLETION), "fi_ep_bind")
        check((<Control>function(self.fid, OPS, 2))(self.fid, ENABLE, NULL), "fi_enable")
        self.transfer_out = <Send>function(self.fid, MESSAGES, SENDMSG)
        self.transfer_in = <Receive>function(self.fid, MESSAGES, 0)
        for place in range(RECEIVES):
            self.receive(place)
        return 0

    cdef int receive(self, int place) except -1:
        """Hand a buffer to the library, into which it receives."""
        cdef char* at = self.memory + (SENDS + place) * MESSAGE_MAX
        cdef void* context = <void*>(<u64>self.number << 8 | place)
        found = self.transfer_in(self.fid, at, MESSAGE_MAX, NULL, 0, context)
        if found < 0:
            self.domain.note_closed(self, text_of(-found))
        return 0

    cdef bytes received(self, int place, size_t size):
        data = PyBytes_FromStringAndSize(self.memory + (SENDS + place) * MESSAGE_MAX, size)
        self.receive(place)
        return data

    cdef int connect(self, void* info) except -1:
        call = <Connect>function(self.fid, CM, 3)
        check(call(self.fid, pointer_at(info, 56), NULL, 0), "fi_connect")
        return 0

    cpdef bint send(self, bytes data) except -1:
        """Send a message; False: it is closed, or as many are under way as it may have."""
        cdef size_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t found
        cdef char* buffer
        cdef Vector vector
        cdef Message parts
        if size > MESSAGE_MAX:
            raise FabricError("a message", errno.EMSGSIZE)
        if self.closed or self.sent - self.freed == SENDS:
            self.domain.progress()
        if self.closed or self.sent - self.freed == SENDS:
            return False
        buffer = self.memory + self.sent % SENDS * MESSAGE_MAX
        memcpy(buffer, PyBytes_AS_STRING(data), size)
        vector.start = buffer
        vector.size = size
        memset(&parts, 0, sizeof(parts))
        parts.vector = &vector
        parts.count = 1
        parts.context = <void*>(<u64>self.number << 8 | SENT)
        self.sent += 1
        # Messages leave in their order, so one completion is that of those before it, too.
        cdef u64 flags = 0 if self.sent % TOLD else COMPLETION
        while True:
            found = self.transfer_out(self.fid, &parts, flags)
            if found != -EAGAIN:
                break
            self.domain.progress()
            if self.closed:
                return False
        if found < 0:
            self.domain.note_closed(self, text_of(-found))
        return found >= 0

    def close(self):
        """Close it, without an event. May be called twice."""
        if self.fid != NULL:
            self.closed = self.closed or "this side closed it"
            self.domain.connections.pop(self.number, None)
            shut(self.fid)
            self.fid = NULL


@cython.final
cdef class Listener:
    """The passive endpoint of a server, and the domain of its connections."""

    def __init__(self, str host, int port):
        cdef void* info = info_of(host, port, SOURCE)
        cdef unsigned char address[64]
        cdef size_t size = sizeof(address)
        self.domain = Domain()
        try:
            self.domain.open(info)
            make = <Make>function(self.domain.fabric, OWN, 1)
            check(make(self.domain.fabric, info, &self.fid, NULL), "fi_passive_ep")
        finally:
            fi_freeinfo(info)
        check((<Bind>function(self.fid, OPS, 1))(self.fid, self.domain.fids[1], 0), "fi_pep_bind")
        check((<Plain>function(self.fid, CM, 4))(self.fid), f"{host}:{port}")
        check((<Getname>function(self.fid, CM, 1))(self.fid, address, &size), "fi_getname")
        self.port = address[2] << 8 | address[3]

    def accept(self, u64 info):
        """Take a request: its connection."""
        cdef Connection made
        try:
            made = self.domain.add(<void*>info)
        finally:
            fi_freeinfo(<void*>info)
        try:
            check((<Accept>function(made.fid, CM, 5))(made.fid, NULL, 0), "fi_accept")
        except FabricError:
            made.close()
            raise
        return made

    def reject(self, u64 info):
        """Refuse a request."""
        call = <Connect>function(self.fid, CM, 6)
        call(self.fid, pointer_at(<void*>info, 64), NULL, 0)
        fi_freeinfo(<void*>info)

    def close(self):
        shut(self.fid)
        self.domain.close()


def connect(str host, int port, double timeout_s):
    """A new connection, with a domain of its own. FabricError: there is none, or not in time."""
    cdef void* info = info_of(host, port, 0)
    cdef Domain domain = Domain()
    cdef Connection made
    cdef Event told
    try:
        domain.open(info)
        made = domain.add(info)
        made.connect(info)
    except BaseException:
        domain.close()
        raise
    finally:
        fi_freeinfo(info)
    deadline = now_s() + timeout_s
    while now_s() < deadline:
        found = domain.wait(deadline - now_s())
        if any(told.kind == CLOSED for told in found):
            domain.close()
            raise FabricError(f"{host}:{port}", errno.ECONNREFUSED)
        # A message may have come with the connection; the caller asks for it.
        domain.pending += [told for told in found if told.kind == MESSAGE]
        if any(told.kind == CONNECTED for told in found):
            return made
    domain.close()
    raise FabricError(f"{host}:{port} does not answer", errno.ETIMEDOUT)


def sockets_to(host, port):
    """The sockets of this process that are connected to that address: descriptor, device and inode,
    which tell it from a later one with its number. They close on exec."""
    there = {info[4][:2] for info in socket.getaddrinfo(host, port, socket.AF_INET)}
    found = set()
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(fd)) as copy:
                    if copy.family == socket.AF_INET and copy.getpeername() in there:
                        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
                        found.add((fd, status.st_dev, status.st_ino))
    return found
