"""C-level face of link.pyx."""

from limpet.shm.endpoint.layout cimport CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.net.wire cimport *
cimport cython

from limpet.shm.net.codec cimport Answer, u64
from limpet.shm.net.libfabric cimport Connection, now_s

cdef class Verb:
    cdef bytes part
    cdef Py_ssize_t room
    cdef int node
    cdef u64 message
    cdef Py_ssize_t place
    cdef int take(self, const char* found) except -1

@cython.final
cdef class WordVerb(Verb):
    cdef u64 value
    cdef bint arrived

@cython.final
cdef class BytesVerb(Verb):
    cdef bytes found

@cython.final
cdef class WordsVerb(Verb):
    cdef u64[::1] words
    cdef Py_ssize_t start

@cython.final
cdef class Batch:
    cdef list verbs
    cdef u64 number
    cdef Py_ssize_t size
    cdef Py_ssize_t room
    cdef bint foreground
    cdef bint changes

cdef class Link:
    cdef readonly str host
    cdef readonly int port
    cdef readonly str name
    cdef bytes secret
    cdef readonly str where
    cdef public str failure
    cdef Batch queue
    cdef list unanswered
    cdef u64 number
    cdef int pid
    cdef public bint ordered
    cdef bint judged
    cdef public object successors
    cdef readonly double patience_s
    cdef bytes side
    cdef Link control
    cdef double beat_s
    cdef readonly Connection connection
    cdef readonly frozenset nodes
    cdef readonly object superblock
    cdef readonly object sockets
    cdef object __weakref__

    cpdef bytes receive(self, double deadline)
    cdef int put(self, Verb verb, bint foreground, bint changes) except -1
    cdef int flush(self) except -1
    cdef Answer collect_one(self)
    cdef int beat(self, bytes figures) except -1
    cdef bint is_ready(self) except -1
    cdef bint judges(self, Link other) except -1
    cdef int lose(self, str why) except -1

cdef class RemoteNode:
    cdef readonly list links
    cdef readonly int index
    cdef readonly object size
    cdef readonly object generation
    cdef readonly Link link
    cdef readonly str name
    cdef public object endpoint
    cdef u64 bytes_
