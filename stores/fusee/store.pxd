cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.cache cimport IndexCache
from limpet.stores.fusee.growth cimport ReplicatedGrowth
from limpet.stores.race.old.hash_store cimport HashStore
from limpet.stores.race.old.index cimport is_valid

cdef u64 ADDRESS_MASK
cdef u64 BIRTH
cdef int DONE
cdef u64 ENTRY_SIZE
cdef int EXISTS
cdef u64 EXPECTED_SIZE
cdef int FAILED
cdef int IDLE
cdef int INSERT
cdef int MISSING
cdef int NODE_SHIFT
cdef int NO_MEMORY
cdef int PUT
cdef u64 OBJECT_MASK
cdef int UPDATE
cdef u64 UPDATED

cdef class Fusee(ReplicatedGrowth):
    cdef readonly IndexCache cache

    @cython.locals(slot=u64)
    cdef _search(self, bytes key, default)
    @cython.locals(place='long long', slot=u64, guess=u64)
    cdef u64 _guess(self, bytes key) except? 0
    @cython.locals(place='long long')
    cdef int _learn(self, u64 slot, u64 word) except -1
    @cython.locals(outcome=int)
    cdef int _write_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    @cython.locals(first=u64)
    cdef u64 _index_of(self, u64 slot) noexcept
    @cython.locals(place='long long', known=bint, updates=bint, reference=u64, desired=u64, slot=u64, outcome=int)
    cdef int _attempt(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    @cython.locals(slot=u64, old=u64, k=u64)
    cdef int _expect(self, long long place) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64)
    cdef bint _candidate(self) except -1
    @cython.locals(outcome=int)
    cdef int _delete_once(self, bytes key) except -1
    @cython.locals(slot=u64)
    cdef int _try_delete(self, bytes key) except -1
