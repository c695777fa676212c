cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.race.old.store cimport Growing

cdef int AGAIN
cdef u64 POINTER
cdef u64 DOUBTS_MAX
cdef u64 PATIENCE

cdef class LockedGrowing(Growing):
    cdef u64 busy
    cdef u64 holder
    cdef u64 pin
    cdef u64 doubts

    @cython.locals(lock=u64, holder=u64, outcome=int)
    cdef int _split(self) except -1
    cdef int _wait(self, u64 attempt) except -1
