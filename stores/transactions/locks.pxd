cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64

cdef class ObjectLocks:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef u64[::1] zero

    cpdef u64 word(self, u64 at) except? 0
    @cython.locals(held=u64)
    cpdef u64 holder(self, u64 at) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_acquire(self, u64 at) except? 0xFEEDFACEDEADBEA7
    cpdef int post_release(self, u64 at) except -1
