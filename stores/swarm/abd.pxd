cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.safe_guess cimport SafeGuess
from limpet.stores.swarm.words cimport is_tombstone, time_of, tuple_word

cdef int DONE
cdef u64 HEADER
cdef int HEADER_WORDS
cdef int NO_MEMORY
cdef int REFUSED
cdef u64 VERIFIED

cdef class Abd(SafeGuess):
    cdef int ahead

    @cython.locals(writer=int, outcome=int, held=int, ahead=int, w=u64)
    cpdef int put_value(self, bytes value) except -1
    @cython.locals(ahead=int, n=int, k=int, address=u64)
    cdef int _write_ahead(self, bytes value) except -1
    @cython.locals(address=u64)
    cdef int write_buffer(self, int k) except -1
    @cython.locals(lane=bint)
    cdef int _settle(self, u64 w, int held) except -1
