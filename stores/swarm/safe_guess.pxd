cimport cython

from limpet.shm.clients.clock cimport Clock
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.timestamp_lock cimport TimestampLock
from limpet.stores.swarm.words cimport (
    is_tombstone, placed, rank_of, side_of, stamp_of, time_of, tuple_word, writer_of,
)

cdef int AGAIN
cdef int DELETED
cdef int DONE
cdef int GONE
cdef u64 GUESSED
cdef int NO_MEMORY
cdef int READ
cdef int REFUSED
cdef u64 TIME_MAX
cdef u64 VERIFIED
cdef int WRITE

cdef class SafeGuess(TimestampLock):
    cdef readonly Clock clock
    cdef readonly bytes result

    @cython.locals(writer=int, outcome=int, held=int, w=u64, m=u64, wrote=int)
    cpdef int put_value(self, bytes value) except -1
    @cython.locals(value=bytes, attempt=u64)
    cdef int _insist(self, u64 w, int outcome) except -1
    @cython.locals(lane=bint, n=int, k=int, word=u64)
    cdef int _verify_own(self, u64 w, int held) except -1
    cdef bint _try_verify(self, int k, u64 word) except -1
    cdef bint _try_in_place(self) except -1
    @cython.locals(outcome=int, fresh=u64, wrote=int)
    cdef int _write_again(self, u64 w, u64 m, bytes value, int held) except -1
    cdef int _confirm(self) except -1
    cdef int _withdraw_guess(self, u64 w, bytes value, int held) except -1
    @cython.locals(outcome=int, m=u64, attempt=u64, missed=u64, refused=u64)
    cpdef int get_value(self) except -1
    @cython.locals(lane=bint, n=int, k=int)
    cdef int _verify_read(self, u64 m, bytes value) except -1
    @cython.locals(outcome=int, word=u64, wrote=int)
    cpdef int entomb(self, u64 ticket) except -1
