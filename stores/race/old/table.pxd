cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.records cimport Objects
from limpet.stores.race.old.hash_store cimport HashStore

cdef u64 FROZEN
cdef u64 PATIENCE
cdef u64 REFERENCE_MASK
cdef u64 TENTATIVE

cdef int DONE
cdef int AGAIN
cdef int FULL

cdef class Race(HashStore):
    @cython.locals(lost=bint)
    cdef int _replace(self, u64 slot, u64 word, u64 desired) except -1
    @cython.locals(index=int, slot=u64, vacant=u64, tentative=u64, lost=bint)
    cdef int _insert(self, bytes key, u64 desired, u64 attempt) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, theirs=u64)
    cdef bint _rival(self, bytes key, u64 slot, u64 attempt) except -1
    cdef u64 _vacant(self, u64 word) except? 0
    @cython.locals(lost=bint)
    cdef int _remove(self, u64 slot, u64 word) except -1
