cimport cython

from limpet.shm.clients.unique_ids cimport Tickets
from limpet.shm.endpoint.verbs cimport u64

cdef u64 MASK
cdef u64 SCRAMBLE
# STAMP_SIZE and LEAST are for others to import.

@cython.final
cdef class Stamps:
    cdef readonly Tickets tickets

    cpdef int forget(self) except -1
    cdef u64 take(self) except? 0
