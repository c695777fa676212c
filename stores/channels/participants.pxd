from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64

cdef class Participants:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly object membership
    cdef readonly u64 address
    cdef readonly int count

    cpdef u64 word(self, u64 row) except? 0
    cpdef bint lives(self, u64 ident) except -1
