cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport Insistence, Protocol
from limpet.stores.swarm.register cimport (
    Register, is_tombstone, rank_of, side_of, stamp_of, time_of, tuple_word, writer_of,
)
from limpet.stores.swarm.replica cimport Quorum, Replica
from limpet.stores.swarm.row cimport Row

@cython.final
cdef class TimestampLock:
    cdef Quorum quorum
    cdef Register register
    cdef Endpoint endpoint
    cdef u64[::1] found

    @cython.locals(quorum=Quorum, locked=u64, completed=int, refused=bint, k=int, rounds=int)
    cdef bint try_lock(self, u64 word, int mode) except -1
    @cython.locals(at=u64, iterations=int, expected=u64)
    cdef int _race(self, int k, u64 writer, u64 locked) except -1

cdef class SafeGuess(Protocol):
    cdef TimestampLock lock
    cdef Insistence insistence

    @cython.locals(quorum=Quorum, row=Row, writer=int, outcome=int, held=int, w=u64, wrote=int)
    cpdef int write(self, bytes value) except -1
    @cython.locals(quorum=Quorum, row=Row, m=u64)
    cdef int _conclude(self, u64 w, int held, int outcome, int wrote) except -1
    @cython.locals(row=Row, w=u64)
    cdef u64 begin(self, bytes value) except? 0
    cdef int post(self, u64 w) except -1
    @cython.locals(quorum=Quorum, row=Row, outcome=int, wrote=int)
    cpdef int finish(self, u64 w, int held, bint doubtful) except -1
    @cython.locals(quorum=Quorum, outcome=int)
    cdef int _read_row(self) except -1
    @cython.locals(quorum=Quorum, row=Row, scope=bint, n=int, word=u64, replica=Replica)
    cdef int _verify_own(self, u64 w, int held) except -1
    @cython.locals(quorum=Quorum, row=Row, outcome=int, fresh=u64, wrote=int, writer=int)
    cdef int _slow_path(self, u64 w, u64 m, bytes value, int held) except -1
    @cython.locals(quorum=Quorum, row=Row, m=u64)
    cdef int _withdraw(self, u64 w, int held) except -1
    @cython.locals(
        quorum=Quorum, outcome=int, m=u64, again=bint, attempt=u64, missed=u64, refused=u64
    )
    cpdef int read(self) except -1
    @cython.locals(quorum=Quorum, scope=bint, n=int, top=u64, replica=Replica)
    cdef int _verify_read(self, u64 m, bytes value) except -1
