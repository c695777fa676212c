cimport cython

from limpet.shm.endpoint.verbs cimport lowest_bit, u64
from limpet.stores.base cimport as_bytes
from limpet.stores.race.old.index cimport Index

cdef int BATCH
cdef u64 LINK_MASK
cdef int NODE_SHIFT
cdef u64 PREFETCH_SIZE

cdef int INSERT
cdef int UPDATE
cdef int DONE
cdef int AGAIN
cdef int NO_MEMORY
cdef int EXISTS
cdef int MISSING
cdef int FULL

cdef class HashStore(Index):
    cdef u64[::1] places
    cdef readonly int replicas

    @cython.locals(row=int, key=bytes)
    cdef int _get_batch(self, list keys, list found) except -1
    @cython.locals(side=int)
    cdef int _keep_place(self, int row) noexcept
    cdef int _turn_to_row(self, int row) noexcept
    @cython.locals(left=u64, word=u64, size=u64)
    cdef int _expect_objects(self, int row) except -1
    @cython.locals(size=u64, exact=u64, attempt=u64, outcome=int, swept=bint, widened=bint)
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(reference=u64, desired=u64, slot=u64)
    cdef int _write_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    @cython.locals(node=u64, reference=u64)
    cdef u64 _make(self, bytes key, bytes value, u64 size) except? 0
    cdef int _give_way(self, u64 attempt) except -1
    cdef int _make_room(self, bytes key, bint swept) except -1
    @cython.locals(slot=u64)
    cdef int _delete_once(self, bytes key) except -1
    cdef int _replace(self, u64 slot, u64 word, u64 desired) except -1
    cdef int _insert(self, bytes key, u64 desired, u64 attempt) except -1
    cdef int _remove(self, u64 slot, u64 word) except -1
