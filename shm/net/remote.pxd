"""C-level face of remote.pyx."""

from limpet.shm.endpoint.layout cimport CONTROL_NODE, NODE_STATES
from limpet.shm.endpoint.slots cimport FIGURES_COUNT
from limpet.shm.endpoint.states cimport FORMER
from limpet.shm.net.wire cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, Image, u32, u64
from limpet.shm.net.codec cimport Answer
from limpet.shm.net.link cimport BytesVerb, Link, RemoteNode, Verb, WordVerb

cdef class Tagged:
    cdef u64[::1] words
    cdef Py_ssize_t start
    cdef u64 tag

cdef class RemoteEndpoint(Endpoint):
    cdef public dict copies
    cdef object lock
    cdef int pid
    cdef readonly bint over
    cdef u64 lives
    cdef object told
    cdef list nodes
    cdef dict state_of
    cdef list links
    cdef list deferred
    cdef dict awaited
    cdef u64 guard_addr
    cdef u64 guard_word
    cdef unsigned char down[256]
    cdef unsigned char gone[256]
    cdef unsigned char marked[256]
    cdef bint counting
    cdef u64 figures_from[96]
    cdef u64 figures_to[96]
    cdef u64 tickets
    cdef dict posted
    cdef list images
    cdef object error
    cdef readonly u64 messages
    cdef readonly u64 bytes_sent
    cdef object __weakref__

    cdef bint is_apart(self) noexcept
    cdef int see(self, int node, u64 word) except -1
    cdef bytes figures_now(self)
    cdef bint is_behind(self) noexcept
    cdef int forget(self) except -1
    cdef int let_beat(self, Link link) except -1
    cdef list alive(self)
    cdef int connect(self) except -1
    cdef int tell_guard(self, list links) except -1
    cdef bint is_node(self, int index) noexcept
    cdef RemoteNode node_at(self, u64 addr, u64 size)
    cdef int put(self, Link link, Verb verb, bint foreground, bint changes) except -1
    cdef int add(
        self, Verb verb, int operation, u64 addr, u64 size, u64 first, u64 second, u64 third,
        u64 fourth, bytes data, bint quiet, bint sent
    ) except -1
    cdef list busy_beside(self, Link link)
    cdef int settle(self, Link link) except -1
    cdef int undefer(self, Link link) except -1
    cdef int send_queue(self, Link link) except -1
    cdef int collect(self, Link link) except -1
    cdef int sync(self, list links) except -1
    cdef int sync_one(self, Link link) except -1
    cdef int judge(self, Answer answer, bint foreground) except -1
    cdef object failure_of(self, Link link)
    cdef int have_judged(self, Link link, Link control) except -1
    cdef int leave(self, str why) except -1
    cdef u64 word_of(
        self, u64 addr, int operation, u64 first, u64 second, u64 third, u64 fourth, u64 size
    ) except? 0xFEEDFACEDEADBEA7
    cdef WordVerb load_later(self, u64 addr)
    cdef u64 ticketed(
        self, u64 addr, int operation, u64 first, u64 second, u64 third, u64 fourth
    ) except? 0xFEEDFACEDEADBEA7
    cdef int write_bytes(self, u64 addr, bytes data, bint posted) except -1
    cdef int read_later(self, u64 addr, u64[::1] words, Py_ssize_t count, Py_ssize_t start) except -1
    cdef int make_room(self, u64 addr, Py_ssize_t size) except -1
    cdef Py_ssize_t earlier(self, u64 first, Link link) except -2
    cdef int sending(
        self, int operation, u64 addr, u64 size, u64 first, u64 fourth, bytes data, bint atomic
    ) except -1
    cdef int finish(self) except -1
