cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.sherman.fences cimport Fences, Run
from limpet.stores.sherman.layout cimport *
from limpet.stores.transactions.layout cimport OBJECT_SHIFT

cdef u64 HINTS_MAX
cdef u64 HINTS_MIN
cdef u64 HINTS_PER_LEAF
cdef u64 HINTS_PER_SIBLING
cdef u64 NUMBERS
cdef int SEEN_WORDS

cdef class Routes:
    cdef public u64 root
    cdef readonly Py_ssize_t room
    cdef readonly Py_ssize_t count
    cdef Fences tops
    cdef list runs
    cdef bint changing
    cdef bint ascends
    cdef u64[::1] hints
    cdef u64[::1] siblings
    cdef u64[::1] seen

    cpdef bint is_empty(self) noexcept
    @cython.locals(run=Run, lows=list, end=Py_ssize_t, spot=Py_ssize_t)
    cpdef u64 find(self, bytes key) except? 0
    cpdef u64 find_below(self, bytes end) except? 0
    @cython.locals(number=Py_ssize_t, run=Run, index=Py_ssize_t)
    cpdef int note_leaf(self, bytes low, u64 leaf) except -1
    @cython.locals(run=Run, is_end=bint, upper=Run)
    cdef int _insert(self, Py_ssize_t number, Py_ssize_t index, bytes low, u64 leaf) except -1
    cpdef int note_range(self, bytes low, u64 leaf, bytes high) except -1
    @cython.locals(spot=Py_ssize_t, last=bytes)
    cdef int _clear(self, bytes low, bytes high, bint but_first) except -1
    @cython.locals(index=Py_ssize_t)
    cpdef int note_leaves(self, list lows, list leaves, bytes high) except -1
    @cython.locals(spot=Py_ssize_t)
    cpdef bytes low_at(self, bytes key)
    @cython.locals(spot=Py_ssize_t)
    cpdef int drop(self, bytes key) except -1
    @cython.locals(spot=Py_ssize_t)
    cpdef int drop_below(self, bytes end) except -1
    cpdef int forget(self) except -1
    cdef Py_ssize_t _run_of(self, bytes key, bint with_it) except -1
    @cython.locals(number=Py_ssize_t, run=Run, index=Py_ssize_t)
    cdef Py_ssize_t _before(self, bytes key, bint with_it) except -1
    @cython.locals(number=Py_ssize_t, run=Run)
    cdef Py_ssize_t _last(self) except -1
    @cython.locals(run=Run)
    cdef u64 _leaf_at(self, Py_ssize_t spot) except? 0
    @cython.locals(run=Run)
    cdef bytes _low_of(self, Py_ssize_t spot)
    @cython.locals(number=Py_ssize_t, run=Run)
    cdef int _remove(self, Py_ssize_t spot) except -1
    @cython.locals(size=u64)
    cdef int _make_room(self) except -1
    cpdef int follow(self, u64 leaf, u64 sibling) except -1
    cpdef u64 sibling_of(self, u64 leaf) noexcept
    @cython.locals(place=Py_ssize_t)
    cpdef int note_seen(self, u64 leaf, u64 pointer, u64 count) except -1
    cpdef u64 pointer_seen(self, u64 leaf) noexcept
    cpdef u64 count_seen(self, u64 leaf) noexcept
    @cython.locals(
        spot=Py_ssize_t, number=Py_ssize_t, index=Py_ssize_t, used=Py_ssize_t, run=Run, low=bytes
    )
    cpdef Py_ssize_t leaves_after(
        self, bytes key, bytes high, u64[::1] leaves, Py_ssize_t count
    ) except -1
    @cython.locals(word=u64)
    cpdef u64 hinted(self, u64 hashed) noexcept
    cpdef bint is_new(self, u64 hashed) noexcept
    @cython.locals(number=u64)
    cpdef int hint(self, u64 hashed, u64 leaf, u64 place, u64 offset) except -1
    cpdef int unhint(self, u64 hashed) except -1
    cpdef u64 hinted_leaf(self, u64 hint) noexcept
