cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.in_n_out cimport InNOut
from limpet.stores.swarm.words cimport row_of, side_of, stamp_of

cdef u64 ADDRESS_MASK
cdef u64 ENTRY_SIZE
cdef u64 OLD
cdef u64 REFERENCE_MASK
cdef int STAMP_SHIFT
cdef u64 VERIFIED_BIT

cpdef u64 area_of(u64 key_size) noexcept

cdef class Recycling(InNOut):
    @cython.locals(held=int, pointers=u64, k=int, side=int, at=u64)
    cdef int give_up(self, int seen, u64 row, u64 reference) except -1
    @cython.locals(own=u64, at=u64, n=int, row=u64, side=u64, first=u64, other=u64)
    cdef int recycle(self, u64 word) except -1
    @cython.locals(first=u64, verified=u64, n=int, there=u64)
    cdef bint _is_useless(self, u64 word, u64 row, u64 side, u64 reference) except -1
    @cython.locals(k=int, at=u64, size=u64)
    cpdef bytes key(self)
    @cython.locals(address=u64)
    cdef bint _is_of(self, u64 reference, int k, u64 stamp) except -1
