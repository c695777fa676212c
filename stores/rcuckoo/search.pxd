cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.rows cimport DependentHash, LockedRows, Row

cdef int NODES_MAX
cdef int MET_SIZE
cdef u64 SEARCHES_MAX
cdef int SEARCH_SHIFT
cdef int UNKNOWN_MAX

cdef class PathSearch:
    cdef DependentHash places
    cdef int depth
    cdef u64 size
    cdef u64[::1] others
    cdef u64[::1] tags
    cdef dict beside
    cdef u64[::1] fresh
    cdef readonly u64[::1] begins
    cdef readonly u64[::1] counts
    cdef u64[::1] places_of
    cdef readonly int runs
    cdef readonly int held
    cdef u64[::1] queue
    cdef long long[::1] parents
    cdef long long[::1] slots
    cdef long long[::1] depths
    cdef u64[::1] met
    cdef public u64 searches
    cdef int count
    cdef readonly u64[::1] path_rows
    cdef readonly u64[::1] path_slots
    cdef readonly int length
    cdef readonly u64[::1] unknown
    cdef readonly int lacking

    @cython.locals(index=u64)
    cpdef int forget(self) except -1
    @cython.locals(at=u64, slot=int, other=u64)
    cpdef u64 cache_row(self, Row found, u64 row) except? 0
    @cython.locals(at=u64)
    cpdef int note(self, u64 row, int slot, u64 other) except -1
    cpdef bint knows(self, u64 row) except -1
    cpdef int begin(self) except -1
    @cython.locals(place='long long', slot=int)
    cpdef int keep(self, u64 at, u64 row) except -1
    @cython.locals(at='long long')
    cdef long long _cached(self, u64 row) except? -2
    cpdef int release(self) noexcept
    @cython.locals(index=int)
    cpdef int run_of(self, u64 row) noexcept
    @cython.locals(place=int, more='long long', held=int)
    cpdef int hold(self, u64 row, u64 count) except -1
    @cython.locals(run=int, offset=u64, held=u64, at=u64, slot=int)
    cdef long long _visit_locked(self, LockedRows locked, u64 row) except -2
    @cython.locals(
        index=int, row=u64, other=u64, others=u64[::1], at='long long', slot=int, locked=u64
    )
    cpdef int search(self, u64 first, u64 second, LockedRows found) except -1
    @cython.locals(at=u64, mark=u64, above='long long', index=int)
    cdef bint _meet(self, u64 row, long long parent, int slot, int depth) except -1
    @cython.locals(index=int, known=bint)
    cdef int _lack(self, u64 row) except -1
    @cython.locals(step=int, index='long long', slot='long long')
    cdef int _found(self, long long last, long long empty) except -1
