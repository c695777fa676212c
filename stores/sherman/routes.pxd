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
cdef int PART_MAX

cdef class Part:
    cdef readonly list lows
    cdef readonly list leaves

cdef class Routes:
    cdef public u64 root
    cdef readonly int room
    cdef readonly u64 count
    cdef readonly list bounds
    cdef readonly list parts
    cdef u64[::1] hints
    cdef u64[::1] siblings

    @cython.locals(part=Part)
    cpdef u64 find(self, bytes key) except? 0
    @cython.locals(index=int, part=Part)
    cpdef u64 find_below(self, bytes end) except? 0
    @cython.locals(found=int)
    cdef int _number(self, bytes key, bint with_it) except -1
    @cython.locals(number=int, part=Part)
    cdef Part _part_of(self, bytes key)
    @cython.locals(number=int, part=Part)
    cdef Part _part_below(self, bytes end)
    @cython.locals(begin=int, number=int, start=int, until=int, first=int, end=int, more=bint, part=Part)
    cpdef int learn_all(self, list lows, list leaves, bytes high) except -1
    cdef int _put(self, Part part, int first, int end, list lows, list leaves) except -1
    @cython.locals(half=int, part=Part, left=Part, right=Part)
    cdef int _split(self, int number) except -1
    @cython.locals(number=int)
    cdef int _remove(self, Part part) except -1
    cdef int _change(self, list bounds, list parts) except -1
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
    @cython.locals(index=int, number=int, part=Part)
    cpdef int learn(self, bytes low, u64 leaf) except -1
    @cython.locals(part=Part)
    cpdef bytes low_at(self, bytes key)
    @cython.locals(part=Part)
    cpdef int drop(self, bytes key) except -1
    @cython.locals(index=int, part=Part)
    cpdef int drop_below(self, bytes end) except -1
    cdef int _drop(self, Part part, int index) except -1
    cpdef int forget(self) except -1
