cimport cython

from limpet.shm.verbs cimport u64

cdef u64 ADDRESS_MASK
cdef int TAG_SHIFT
cdef u64 HINTS_PER_LEAF

cdef class Routes:
    cdef public u64 root
    cdef readonly int room
    cdef readonly list lows
    cdef readonly list leaves
    cdef u64[::1] hints

    @cython.locals(index=int)
    cpdef u64 find(self, bytes key) except? 0
    @cython.locals(word=u64)
    cpdef u64 hinted(self, u64 hashed) noexcept
    cpdef int hint(self, u64 hashed, u64 leaf) except -1
    @cython.locals(index=int)
    cpdef int learn(self, bytes low, u64 leaf) except -1
    @cython.locals(index=int)
    cpdef bytes low_at(self, bytes key)
    @cython.locals(index=int)
    cpdef int drop(self, bytes key) except -1
    cpdef int forget(self) except -1
