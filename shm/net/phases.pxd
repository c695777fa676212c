"""C-level face of phases.pyx."""

from limpet.shm.endpoint.layout cimport CONTROL_NODE
from limpet.shm.net.wire cimport *
from limpet.shm.endpoint.verbs cimport Endpoint
from limpet.shm.net.codec cimport u64

cdef struct Step:
    int operation
    bint quiet
    u64 size
    u64 addr
    u64 arguments[4]
    const char* data
    u64 word

cdef class Phases:
    cdef Step* _steps
    cdef readonly Py_ssize_t count
    cdef public u64 last
    cdef Py_ssize_t _room
    cdef bytes _message

    cpdef int read(self, bytes message) except -1
    cpdef bytes do(self, Endpoint endpoint, object session)
    cdef int _do(self, Endpoint endpoint, Step* step, char* result, object session) except -1
