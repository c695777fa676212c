cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.phases cimport load_alone

cdef class Participants:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly object membership
    cdef readonly u64 address
    cdef readonly int count

    cpdef u64 word(self, u64 row) except? 0
    @cython.locals(tickets=list)
    cpdef list words(self, list rows)
    cpdef bint lives(self, u64 ident) except -1
