cimport cython

from limpet.shm.endpoint.verbs cimport (
    Endpoint, crc_pair, lowest_bit, u64, words_bytes, words_equal, words_put,
)
from limpet.stores.rcuckoo.layout cimport *

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

cdef class Rows:
    cdef readonly Endpoint endpoint
    cdef public u64 base
    cdef readonly u64 entry_words
    cdef readonly u64 row_words
    cdef readonly u64 key_bytes
    cdef readonly u64 value_bytes
    cdef readonly u64[::1] words

    cpdef u64 address(self, u64 row) noexcept
    cpdef u64 slot_address(self, u64 row, u64 slot) noexcept
    cpdef u64 trailer(self, u64 row) noexcept
    @cython.locals(more='long long')
    cpdef int room(self, long long places) except -1
    @cython.locals(size=u64)
    cpdef int read(self, u64 place, u64 row, u64 count=*) except -1
    @cython.locals(size=u64)
    cpdef int post(self, u64 place, u64 row, u64 count=*) except -1
    @cython.locals(start=u64, last=u64)
    cpdef bint is_whole(self, u64 place) except -1
    @cython.locals(one=u64, two=u64, index=u64)
    cpdef bint is_same(self, u64 place, u64 other) except -1
    cpdef u64 version(self, u64 place) noexcept
    cpdef u64 header(self, u64 place, u64 slot) noexcept
    @cython.locals(at=u64, slot=int, header=u64)
    cpdef int find(self, u64 place, bytes key, u64 fingerprint) except -2
    @cython.locals(at=u64, slot=int)
    cpdef int vacant(self, u64 place) except -2
    @cython.locals(at=u64)
    cpdef bytes key(self, u64 place, u64 slot)
    @cython.locals(at=u64, length=u64)
    cpdef bytes value(self, u64 place, u64 slot)
    @cython.locals(header=u64, length=u64)
    cpdef int put_inline(self, u64 place, u64 slot, u64 fingerprint, bytes key, bytes value) except -1
    cpdef int put_extent(self, u64 place, u64 slot, u64 fingerprint, bytes key, u64 reference) except -1
    @cython.locals(at=u64)
    cdef int _put(self, u64 place, u64 slot, u64 header, bytes key, bytes value) except -1
    @cython.locals(at=u64, index=u64)
    cpdef int clear(self, u64 place, u64 slot) except -1
    @cython.locals(to=u64, at=u64, index=u64)
    cpdef int copy(self, u64 place, u64 slot, u64 source, u64 source_slot) except -1
    @cython.locals(at=u64)
    cpdef int load_entry(self, u64 place, u64 slot, u64 address) except -1
    @cython.locals(start=u64, last=u64, at=u64)
    cpdef int post_write(self, u64 place, u64 row, u64 slot, u64 version) except -1
