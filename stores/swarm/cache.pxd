cimport cython

from limpet.shm.verbs cimport u64

cdef int FIXED
cdef int NOWHERE
cdef int SAMPLE

cdef class LocationCache:
    cdef readonly int size
    cdef int row
    cdef readonly dict places
    cdef list keys
    cdef u64[::1] words
    cdef list free
    cdef int turn

    cpdef int forget(self) except -1
    @cython.locals(at='long long')
    cpdef long long find(self, bytes key) except -2
    @cython.locals(place='long long', at='long long', index=int)
    cpdef long long add(self, bytes key) except -2
    cpdef int drop(self, bytes key) except -1
    @cython.locals(least='long long', found=int, uses=u64)
    cdef long long _evict(self) except -2
