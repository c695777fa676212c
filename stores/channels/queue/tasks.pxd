cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.queue.layout cimport CELL_MASK, COUNT_BITS

cdef u64 COUNT_MASK
cdef u64 COUNT_MAX
cdef int LOST
cdef u64 TURN_MASK
cdef int TURN_SHIFT

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

cdef class Tasks:
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 own
    cdef readonly u64 word

    @cython.locals(at=u64, word=u64, lost=u64, following=u64, count=u64)
    cpdef int fold(self, u64 row) except -1
    cpdef int go_on(self, u64 row) except -1
    cpdef u64 more(self)
    cpdef u64 fewer(self)
    cpdef u64 post(self, u64 word) except? 0
    cpdef bint is_done(self, u64 ticket, u64 word) except -1
    @cython.locals(word=u64, ticket=u64)
    cpdef bint end(self) except -1
    cpdef u64 ours(self)
    @cython.locals(
        living=u64, gone=u64, rows=list, idents=list, counts=list, same=list, again=list, index=int,
        ident=u64, word=u64, lost=u64, count=u64,
    )
    cpdef tuple counted(self, Participants participants)
    @cython.locals(endpoint=Endpoint, tickets=list, at=u64, row=u64)
    cdef list _read(self, list rows)
