cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.participants cimport Participants

cdef u64 COUNT_MASK
cdef u64 COUNT_MAX
cdef int LOST
cdef u64 TURN_MASK
cdef int TURN_SHIFT

cdef class Tasks:
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 own
    cdef readonly u64 word

    @cython.locals(at=u64, word=u64, lost=u64, following=u64, count=u64)
    cpdef int fold(self, u64 row) except -1
    cpdef int go_on(self, u64 row) except -1
    cpdef bint begin(self) except -1
    cpdef bint end(self) except -1
    @cython.locals(changed=bint)
    cdef bint _change(self, u64 word) except -1
    cpdef u64 ours(self)
    @cython.locals(
        endpoint=Endpoint, living=u64, gone=u64, row=int, at=u64, ident=u64, word=u64,
        lost=u64, count=u64,
    )
    cpdef tuple counted(self, Participants participants)
