cimport cython

from limpet.shm.endpoint.verbs cimport bit, hash64, lowest_bit, u64, words_tagged
from limpet.stores.base cimport Store
from limpet.stores.records cimport Objects

cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 GROUP_SIZE
cdef int GROUP_WORDS
cdef int BATCH
cdef u64 MASK
cdef u64 MIX_FIRST
cdef u64 MIX_SECOND
cdef u64 OBJECT_MASK
cdef u64 SLOTS
cdef u64 TENTATIVE
cdef u64 VACANT_CLASS

cpdef bint is_vacant(u64 word) noexcept
cpdef bint is_valid(u64 word) noexcept

cdef class Index(Store):
    cdef readonly Objects objects
    cdef u64 groups
    cdef readonly u64 subtables
    cdef u64[::1] tables
    cdef u64[::1] slots
    cdef u64[::1] at
    cdef readonly int bucket_size
    cdef u64 base
    cdef u64 word
    cdef u64 hash
    cdef u64 table

    cdef int _choose(self, bytes key) except -1
    cdef int _choose_to_read(self, bytes key) except -1
    cdef int _place(self, u64 hashed) except -1
    cdef u64 _table_of(self, bytes key) except? 0
    @cython.locals(combined=u64, first=u64, second=u64)
    cdef int _place_in(self, u64 base) except -1
    cdef int _found_places(self) except -1
    cdef int _read_buckets(self) except -1
    cdef int _read_row(self, int row) except -1
    cdef u64 _find(self, bytes key) except? 0
    @cython.locals(left=u64, index=int, word=u64, reference=u64)
    cdef u64 _match(self, bytes key, int row, bint phases) except? 0
    @cython.locals(left=u64, found=u64, index=int)
    cdef u64 _candidates(self, int row) except? 0
    cdef u64 _held(self, u64 slot, u64 word, bytes key) except? 0
    cdef u64 _settled(self, u64 slot, u64 word) except? 0
    cdef u64 _address(self, int index) noexcept
    @cython.locals(best=int, most=int, side=int, main=int, empty=int, last=int, index=int)
    cdef int _room(self) except -2
    cdef bint _is_second(self, int side) noexcept
    cdef list _keys_of(self, u64 group)
    @cython.locals(index=int, word=u64)
    cdef list _keys_here(self, u64 group)
    @cython.locals(word=u64)
    cdef bint _holds(self, u64 slot, bytes key) except -1
