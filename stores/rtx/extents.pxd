cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.rtx.layout cimport *
from limpet.stores.rtx.log cimport Log
from limpet.stores.rtx.participant cimport Participant

cdef class Extent(Participant):
    cdef readonly u64 link_address
    cdef readonly object staging
    cdef readonly u64 leaf
    cdef readonly tuple pair

    cpdef u64 node(self) except? 255
    cpdef list sizes(self)
    cpdef bint reserve(self, Log log, Allocator allocator) except -1
    @cython.locals(reference=u64)
    cpdef bint prepare(self, Log log, Allocator allocator) except -1
    @cython.locals(reference=u64)
    cpdef int unlinked(self, bint committed, list found) except -1
    cpdef list named(self)
