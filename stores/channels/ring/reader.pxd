cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.ring.layout cimport *
from limpet.stores.channels.ring.messages cimport Messages
from limpet.stores.channels.waiting cimport Waiting

cdef class Reader:
    cdef readonly Messages messages
    cdef readonly Endpoint endpoint
    cdef readonly Waiting room
    cdef readonly bint skips
    cdef public u64 ident
    cdef u64 ack
    cdef readonly u64 position
    cdef u64 seen_end
    cdef u64 expected
    cdef u64 unsafe
    cdef readonly u64 lost

    @cython.locals(messages=Messages, end=u64)
    cdef int begin(self, u64 ident, u64 ack, start) except -1
    @cython.locals(messages=Messages, at=u64, size=u64, number=u64, data=bytes, length=u64)
    cdef bytes next(self)
    @cython.locals(oldest=u64)
    cpdef bint was_overtaken(self) except -1
