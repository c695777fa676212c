cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64, words_equal, words_prefetch, words_put
from limpet.stores.swarm.layout cimport *

cdef int HASH_SHIFT
cdef int KEY_MAX
cdef int KEY_WORDS
cdef int LENGTH_SHIFT
cdef u64 LEFT
cdef u64 LONG
cdef u64 USE
cdef u64 USES_MAX
cdef int USES_SHIFT
cdef int WINDOW

cdef class LocationCache:
    cdef readonly int size
    cdef readonly int count
    cdef int width
    cdef u64 mask
    cdef int window
    cdef readonly u64[::1] words
    cdef dict long_keys
    cdef u64 hand

    cpdef int forget(self) except -1
    @cython.locals(hashed=u64, at=u64)
    cpdef u64 prefetch(self, bytes key) except 0
    cpdef long long locate(self, bytes key) except -2
    @cython.locals(row=u64, found=u64)
    cdef long long find(self, u64 hashed) noexcept
    @cython.locals(size=u64)
    cpdef bint holds(self, long long at, bytes key) except -1
    @cython.locals(hashed=u64, at='long long', index=int, size=u64)
    cpdef long long add(self, bytes key) except -2
    @cython.locals(at='long long')
    cpdef int drop(self, bytes key) except -1
    @cython.locals(following='long long')
    cdef int _clear(self, long long at) except -1
    @cython.locals(row=u64)
    cdef long long _room(self, u64 first) except -2
    @cython.locals(least=u64, found='long long', seen=int, at='long long', uses=u64)
    cdef long long _evict(self, u64 row) except -2
