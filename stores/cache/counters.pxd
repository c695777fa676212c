cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.cache.layout cimport *

@cython.final
cdef class Counters:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly u64 clients
    cdef readonly u64 words
    cdef u64 line
    cdef u64 owner

    cpdef int place(self, u64 words) except -1
    cpdef int count(self, u64 what, u64 number) except -1
    @cython.locals(ident=u64)
    cdef int _find_line(self) except -1
