cimport cython

from limpet.shm.endpoint.verbs cimport u64

cdef u64 FADE
cdef long long NOWHERE
cdef int TAG_SHIFT

@cython.final
cdef class IndexCache:
    cdef double threshold
    cdef readonly u64 size
    cdef u64[::1] words

    cpdef int forget(self) except -1
    @cython.locals(place=u64)
    cdef long long find(self, u64 hashed) noexcept
    cdef int index(self, long long place) noexcept
    cdef u64 word(self, long long place) noexcept
    @cython.locals(meta=u64)
    cdef bint trusts(self, long long place) noexcept
    @cython.locals(meta=u64, asked=u64, invalid=u64)
    cdef int judge(self, long long place, u64 word) noexcept
    @cython.locals(place=u64, meta=u64, counts=u64)
    cdef int remember(self, u64 hashed, u64 index, u64 word) noexcept
