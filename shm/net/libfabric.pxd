"""C-level face of libfabric.pyx."""

cimport cython

from limpet.shm.net.wire cimport *

ctypedef unsigned long long u64

ctypedef Py_ssize_t (*ReadCompletions)(void*, void*, size_t) noexcept nogil
ctypedef Py_ssize_t (*ReadEvent)(void*, unsigned int*, void*, size_t, u64) noexcept nogil
ctypedef Py_ssize_t (*ReadError)(void*, void*, u64) noexcept nogil
ctypedef int (*TryWait)(void*, void**, int) noexcept nogil
ctypedef Py_ssize_t (*Receive)(void*, void*, size_t, void*, u64, void*) noexcept nogil
ctypedef Py_ssize_t (*Send)(void*, const Message*, u64) noexcept nogil

cdef struct Vector:
    void* start
    size_t size

cdef struct Message:
    Vector* vector
    void** descriptors
    size_t count
    u64 addr
    void* context
    u64 data

cdef double now_s() noexcept

@cython.final
cdef class Event:
    cdef readonly int kind
    cdef readonly Connection connection
    cdef readonly object data
    cdef readonly u64 info

@cython.final
cdef class Domain:
    cdef void* fabric
    cdef void* domain
    cdef void* fids[2]
    cdef int descriptors[2]
    cdef ReadCompletions read_completions
    cdef ReadError read_completion_error
    cdef ReadEvent read_event
    cdef ReadError read_event_error
    cdef TryWait try_wait
    cdef readonly dict connections
    cdef int last
    cdef unsigned int turns
    cdef public list pending

    cdef int open(self, void* info) except -1
    cdef Connection add(self, void* info)
    cdef Connection with_fid(self, void* fid)
    cdef list taken(self)
    cdef int progress(self) except -1
    cdef int look_at_completions(self) except -1
    cdef int look_at_events(self) except -1
    cdef int note_completion(self, u64 context, size_t size) except -1
    cdef bint note_error(self) except -1
    cdef int note_event(self, unsigned int event, void* fid, void* info) except -1
    cdef int note_closed(self, Connection connection, str why) except -1
    cpdef list drain(self)
    cpdef list wait(self, double timeout_s)

@cython.final
cdef class Connection:
    cdef readonly Domain domain
    cdef readonly int number
    cdef public str closed
    cdef void* fid
    cdef char* memory
    cdef Send transfer_out
    cdef Receive transfer_in
    cdef u64 sent
    cdef u64 freed

    cdef int open(self, void* info) except -1
    cdef int connect(self, void* info) except -1
    cdef int receive(self, int place) except -1
    cdef bytes received(self, int place, size_t size)
    cpdef bint send(self, bytes data) except -1

@cython.final
cdef class Listener:
    cdef readonly Domain domain
    cdef void* fid
    cdef readonly int port
