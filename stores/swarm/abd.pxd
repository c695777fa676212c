cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport Insistence, Protocol
from limpet.stores.swarm.register cimport is_tombstone, time_of, tuple_word
from limpet.stores.swarm.replica cimport Quorum, Replica
from limpet.stores.swarm.row cimport Row

cdef class Abd(Protocol):
    cdef Insistence insistence

    @cython.locals(
        quorum=Quorum, row=Row, known=bint, writer=int, outcome=int, held=int, ahead=int, time=u64,
        w=u64,
    )
    cpdef int write(self, bytes value) except -1
    @cython.locals(row=Row)
    cdef int _conclude(self, u64 w, int held, int outcome) except -1
    @cython.locals(quorum=Quorum, row=Row, time=u64, w=u64)
    cdef u64 begin(self, bytes value) except? 0
    cdef int post(self, u64 w) except -1
    @cython.locals(row=Row)
    cpdef int finish(self, u64 w, int held, bint doubtful) except -1
    @cython.locals(quorum=Quorum, ahead=int, n=int, k=int, address=u64)
    cdef int _write_ahead(self, bytes value) except -1
    @cython.locals(quorum=Quorum, row=Row, scope=bint)
    cdef int _end(self, u64 w, int held) except -1
    @cython.locals(quorum=Quorum, outcome=int, m=u64, attempt=u64, missed=u64)
    cpdef int read(self) except -1
