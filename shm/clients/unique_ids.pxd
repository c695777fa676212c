cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64

cdef u64 STRIDE_US
cdef u64 TIME_MAX

cdef class Tickets:
    cdef readonly Client client
    cdef u64 _owner
    cdef u64 _next
    cdef u64 _end

    cpdef int forget(self) except -1
    @cython.locals(endpoint=Endpoint, scope=bint, taken=u64)
    cpdef u64 take(self) except? 0xFEEDFACEDEADBEA7

cdef class Clock:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef u64 owner
    cdef u64 stride_us
    cdef u64 word
    cdef u64 last
    cdef u64 ceiling
    cdef u64 ahead

    cpdef int forget(self) except -1
    cpdef int begin(self, u64 word) except -1
    cpdef u64 guess(self) except 0
    @cython.locals(now=u64)
    cpdef u64 after(self, u64 time) except 0
    @cython.locals(now=u64)
    cdef u64 _now(self) except? 0
    cdef u64 _use(self, u64 time) except 0
    @cython.locals(scope=bint, found=u64, after=u64)
    cdef int _raise(self, u64 time) except -1
