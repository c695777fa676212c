cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64

# RANGE and TICKETS_MAX are for others to import, and of use once in so many numbers.

cdef class Tickets:
    cdef readonly Client client
    cdef u64 _owner
    cdef u64 _next
    cdef u64 _end

    cpdef int forget(self) except -1
    @cython.locals(endpoint=Endpoint, scope=bint, taken=u64)
    cpdef u64 take(self) except? 0xFEEDFACEDEADBEA7
