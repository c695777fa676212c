cimport cython

from limpet.shm.endpoint.verbs cimport keys_below, u64

cdef u64 LINE_MASK
cdef int LINE_SHIFT
cdef u64 NUMBER_MASK
cdef u64 NUMBERS
cdef int OBJECT_SHIFT
cdef u64 PLACE_MASK
cdef int PLACE_SHIFT
cdef u64 SIGN
cdef int TAG_SHIFT
cdef u64 HINTS_MIN
cdef u64 HINTS_PER_LEAF
cdef u64 HINTS_PER_SIBLING

cdef class Routes:
    cdef public u64 root
    cdef readonly int room
    cdef readonly list lows
    cdef readonly list leaves
    cdef u64[::1] hints
    cdef u64[::1] siblings

    @cython.locals(index=int)
    cpdef u64 find(self, bytes key) except? 0
    @cython.locals(index=int)
    cpdef u64 find_below(self, bytes end) except? 0
    @cython.locals(first=int, end=int)
    cpdef int learn_all(self, list lows, list leaves, bytes high) except -1
    @cython.locals(size=u64)
    cdef int _make_room(self) except -1
    cpdef int follow(self, u64 leaf, u64 sibling) except -1
    cpdef u64 sibling_of(self, u64 leaf) noexcept
    @cython.locals(word=u64)
    cpdef u64 hinted(self, u64 hashed) noexcept
    cpdef bint is_new(self, u64 hashed) noexcept
    @cython.locals(number=u64)
    cpdef int hint(self, u64 hashed, u64 leaf, u64 place, u64 offset) except -1
    cpdef int unhint(self, u64 hashed) except -1
    cpdef u64 hinted_leaf(self, u64 hint) noexcept
    @cython.locals(index=int)
    cpdef int learn(self, bytes low, u64 leaf) except -1
    @cython.locals(index=int)
    cpdef bytes low_at(self, bytes key)
    @cython.locals(index=int)
    cpdef int drop(self, bytes key) except -1
    @cython.locals(index=int)
    cpdef int drop_below(self, bytes end) except -1
    cpdef int forget(self) except -1
