cimport cython

from limpet.shm.endpoint.verbs cimport lowest_bit, u64

cdef u64 MASK
cdef u64 MIX_FIRST
cdef u64 MIX_SECOND
cdef u64 MIX_THIRD
cdef int RANGES

cdef class DependentHash:
    cdef readonly u64 rows
    cdef readonly u64 first
    cdef readonly u64 second
    cdef u64[::1] ranges

    @cython.locals(third=u64, zeros=int, distance=u64, second=u64)
    cpdef int place(self, u64 hashed) except -1
    cpdef u64 other(self, u64 hashed, u64 row) except? 0
