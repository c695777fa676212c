cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.max_register cimport MaxRegister
from limpet.stores.swarm.words cimport is_tombstone, placed, row_of, side_of, stamp_of

cdef int AGAIN
cdef int DELETED
cdef int DONE
cdef int GONE
cdef int NO_MEMORY
cdef int REFUSED
cdef u64 VACANT_CLASS

cdef class WriteBack(MaxRegister):
    @cython.locals(outcome=int, attempt=u64, missed=u64)
    cdef int maximum(self) except -1
    @cython.locals(outcome=int, enough=int, n=int, word=u64)
    cdef int _least(self) except -1
    @cython.locals(outcome=int, attempt=u64)
    cpdef int presence(self) except -1
    @cython.locals(buffer=u64, published=bint, row_is_free=bint, outcome=int)
    cdef int write_back(self, u64 word) except -1
    @cython.locals(held=int, copy=u64, n=int, lane=bint)
    cdef int _write_back_value(self, u64 word) except -1
    @cython.locals(pending=int, n=int, k=int, outcome=int)
    cdef bint _put_copy(self, u64 copy) except -1
    @cython.locals(done=bint, n=int, k=int)
    cdef int _write_back_tombstone(self, u64 word) except -1
    @cython.locals(k=int, n=int, done=bint)
    cdef int _write_back_own(self, u64 word, bytes value) except -1
    cdef int _name(self, int k, u64 copy) except -1
    @cython.locals(k=int, row=u64, word=u64, is_number=bint)
    cpdef u64 ticket(self)
