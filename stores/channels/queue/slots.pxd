cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.queue.layout cimport *

cdef class QueueSlots:
    cdef readonly str name
    cdef u64[::1] bases
    cdef readonly u64 stripes
    cdef readonly u64 maxsize
    cdef readonly u64 stride
    cdef readonly u64 links
    cdef readonly u64 cells
    cdef readonly u64 cell_count

    cpdef u64 slot(self, u64 number) except? 0
    @cython.locals(number=u64)
    cpdef u64 cell(self, u64 word, u64 own) except? 0
    @cython.locals(at=u64)
    cpdef u64 link(self, u64 cell) except? 0
