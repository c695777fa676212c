cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, crc_pair, u64, words_bytes, words_equal, words_put
from limpet.stores.loco.layout cimport *

cdef u64 MIX
cdef u64 MASK
cdef u64 SEQUENCE_MASK

cdef class DataArray:
    cdef readonly Endpoint endpoint
    cdef public u64 base
    cdef readonly u64 count
    cdef readonly u64 parts
    cdef readonly u64 entry_words
    cdef readonly u64 value_at
    cdef readonly u64 key_room
    cdef readonly u64 value_room
    cdef readonly u64[::1] words

    cpdef u64 address(self, u64 entry) noexcept
    cpdef u64 link_address(self, u64 entry) noexcept
    cpdef int read(self, u64 entry) except -1
    cpdef int post(self, u64 entry) except -1
    cpdef u64 state(self) noexcept
    cpdef u64 link(self) noexcept
    cpdef bint is_valid(self) noexcept
    @cython.locals(length=u64)
    cpdef bint key_is(self, bytes key) except -1
    cpdef bint is_whole(self) except -1
    @cython.locals(count=u64, length=u64, life=u64)
    cdef u64 _checksum(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(length=u64)
    cpdef bytes key(self)
    @cython.locals(length=u64)
    cpdef bytes value(self)
    @cython.locals(count=u64, size=u64)
    cpdef u64 compose(self, u64 state, bytes key, bytes value, u64 link) except 0
    @cython.locals(at=u64)
    cpdef int write(self, u64 entry, u64 count, u64 linked) except -1

cdef class EntryJournal:
    cdef readonly Endpoint endpoint
    cdef public u64 at
    cdef u64 sequence
    cdef readonly u64 intended

    cpdef u64 intent(self) except? 0xFEEDFACEDEADBEA7
    cpdef u64 found(self, u64 word) noexcept
    cpdef u64 claim(self) except? 0xFEEDFACEDEADBEA7
    cpdef int declare(self, u64 what, u64 entry, u64 claim) except -1
    cpdef int keep(self, DataArray entries, u64 count) except -1
    cpdef int load(self, DataArray entries) except -1
    cpdef int end(self) except -1
