cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.layout cimport *

cdef int EVERYBODY

cpdef bint spin(Endpoint endpoint, int look) except -1

cdef class Waiting:
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 sleep_us
    cdef readonly bint spins

    cpdef bint spin(self, int look) except -1
    @cython.locals(word=u64, token=u64)
    cpdef u64 prepare(self) except? 0
    cpdef int sleep(self, u64 token, u64 timeout_us) except -1
    @cython.locals(word=u64)
    cpdef int wake(self) except -1
    @cython.locals(word=u64, counted=u64, seen=u64)
    cpdef int wake_one(self) except -1
