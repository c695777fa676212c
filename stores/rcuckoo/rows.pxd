cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, Image, crc_pair, lowest_bit, u64, words_put
from limpet.stores.rcuckoo.layout cimport *

cdef u64 MASK
cdef u64 MIX_FIRST
cdef u64 MIX_SECOND
cdef u64 MIX_THIRD
cdef int RANGES
cdef u64 ONES
cdef u64 LOW

@cython.final
cdef class DependentHash:
    cdef readonly u64 rows
    cdef readonly u64 first
    cdef readonly u64 second
    cdef u64[::1] ranges

    @cython.locals(third=u64, zeros=int, distance=u64, second=u64)
    cpdef int place(self, u64 hashed) except -1
    cpdef u64 other(self, u64 hashed, u64 row) except? 0

@cython.final
cdef class Row:
    cdef Endpoint endpoint
    cdef readonly bint direct
    cdef readonly Image image
    cdef readonly Py_ssize_t at
    cdef public u64 address
    cdef readonly u64[::1] head
    cdef Py_ssize_t entry_words
    cdef Py_ssize_t key_max
    cdef Py_ssize_t value_max
    cdef Py_ssize_t offset

    @cython.locals(index=Py_ssize_t)
    cpdef int arrive(self, Image image, Py_ssize_t at) except -1
    cpdef u64 sequence(self) noexcept
    cpdef int size(self, int slot) noexcept
    @cython.locals(at=Py_ssize_t, scope=bint)
    cdef int _look_at(self, int slot) except -1
    @cython.locals(differ=u64, left=u64, slot=int)
    cpdef int find(self, bytes key, u64 tag) except -2
    @cython.locals(size=int)
    cdef bint _has(self, int slot, bytes key) except -1
    @cython.locals(slot=int)
    cpdef int vacant(self) noexcept
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t key_size(self, int slot) noexcept
    cpdef u64 tag(self, int slot) noexcept
    @cython.locals(at=Py_ssize_t)
    cpdef bytes key(self, int slot)
    cpdef u64 reference(self, int slot) except? 0xFEEDFACEDEADBEA7
    cdef u64 reference_there(self, int slot) except? 0xFEEDFACEDEADBEA7
    cpdef bytes value(self, int slot)
    @cython.locals(size=int, at=Py_ssize_t)
    cdef bytes value_there(self, int slot)

@cython.final
cdef class Entry:
    cdef readonly u64[::1] words
    cdef readonly Py_ssize_t count
    cdef readonly u64 tag
    cdef readonly u64 key_size
    cdef readonly u64 size

    @cython.locals(key_size=Py_ssize_t, value_size=Py_ssize_t)
    cpdef int fill(self, u64 tag, bytes key, bytes value, u64 reference) except -1
    cpdef int empty(self) except -1
    cpdef int copy(self, Row row, int slot) except -1
    @cython.locals(value_size=u64, count=Py_ssize_t)
    cpdef int load(self, u64 sizes) except -1
    cdef int _set_sizes(self) except -1

@cython.final
cdef class Rows:
    cdef readonly Endpoint endpoint
    cdef readonly object parameters
    cdef readonly bint summed
    cdef public u64 base
    cdef readonly u64 entry_words
    cdef readonly u64 row_words
    cdef readonly u64 size
    cdef u64[::1] words

    cpdef u64 address(self, u64 row) noexcept
    cpdef Image image(self, Py_ssize_t count, bint in_place)
    cpdef Row row(self, bint direct)
    cpdef int post(self, Image image, u64 row, Py_ssize_t count) except -1
    @cython.locals(image=Image, found=Row)
    cpdef Row read(self, u64 number)
    @cython.locals(found=Row, stays=bint)
    cpdef Row read_whole(self, u64 number)
    cpdef bint is_whole(self, Row row) except -1
    @cython.locals(words=u64[::1], there=u64, found=u64)
    cdef u64 _sum(self, Row row) except? 0xFEEDFACEDEADBEA7
    cpdef bint is_same(self, Row row, Row later) except -1
    @cython.locals(
        words=u64[::1], ones=u64, shift=u64, at=Py_ssize_t, address=u64, kept=bint,
        count=Py_ssize_t,
    )
    cpdef int post_entry(self, Row row, u64 number, u64 slot, u64 sequence, Entry entry) except -1
    @cython.locals(words=u64[::1], at=Py_ssize_t, index=Py_ssize_t)
    cdef int _add_sum(self, Row row, u64 slot, Entry entry) except -1

@cython.final
cdef class LockedRows:
    cdef Rows rows
    cdef u64 size
    cdef bint in_place
    cdef list images
    cdef Row view

    cpdef int post(self, int run, u64 row, u64 count) except -1
    cpdef Row row(self, int run, u64 offset)
    cpdef int show(self, Row row, int run, u64 offset) except -1
