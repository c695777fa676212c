cimport cython

from limpet.shm.verbs cimport hash64, u64
from limpet.stores.contract cimport Store, as_bytes
from limpet.stores.objects cimport Objects

cdef u64 GROUP_SIZE
cdef int GROUP_WORDS
cdef int BATCH
cdef u64 LINK_MASK
cdef u64 MASK
cdef u64 MIX_FIRST
cdef u64 MIX_SECOND
cdef int NODE_SHIFT
cdef u64 PATIENCE
cdef u64 PREFETCH_SIZE
cdef u64 REFERENCE_MASK
cdef u64 TENTATIVE

cdef int PUT
cdef int INSERT
cdef int UPDATE
cdef int DONE
cdef int AGAIN
cdef int NO_MEMORY
cdef int EXISTS
cdef int MISSING
cdef int FULL

cdef class Race(Store):
    cdef readonly Objects objects
    cdef u64 groups
    cdef u64 subtables
    cdef u64[::1] tables
    cdef u64[::1] slots
    cdef u64[::1] hashes
    cdef u64[::1] at
    cdef u64 word
    cdef u64 hash
    cdef u64 table

    @cython.locals(row=int, index=int, word=u64, key=bytes)
    cdef int _get_batch(self, list keys, list found) except -1
    cdef int _choose(self, bytes key) except -1
    @cython.locals(combined=u64, first=u64, second=u64, base=u64)
    cdef int _place(self, u64 hashed) except -1
    cdef int _read_buckets(self) except -1
    cdef int _read_row(self, int row) except -1
    cdef u64 _find(self, bytes key) except? 0
    @cython.locals(fingerprint=u64, index=int, word=u64)
    cdef u64 _match(self, bytes key, int row, bint phases) except? 0
    cdef u64 _address(self, int index) noexcept
    @cython.locals(size=u64, attempt=u64, outcome=int, swept=bint)
    cdef int _write(self, key, value, int mode) except -1
    @cython.locals(reference=u64, desired=u64, slot=u64, lost=bint)
    cdef int _write_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    @cython.locals(index=int, slot=u64, tentative=u64, lost=bint)
    cdef int _insert(self, bytes key, u64 desired, u64 attempt) except -1
    @cython.locals(best=int, most=int, side=int, main=int, empty=int, last=int, index=int)
    cdef int _room(self) except -2
    cdef bint _is_second(self, int side) noexcept
    @cython.locals(fingerprint=u64, index=int, word=u64, theirs=u64)
    cdef bint _rival(self, bytes key, u64 slot, u64 attempt) except -1
    @cython.locals(slot=u64, lost=bint)
    cdef int _delete(self, bytes key) except -1
    @cython.locals(index=int, word=u64)
    cdef list _keys_of(self, u64 group)
    cdef bint _holds(self, u64 slot, bytes key) except -1
