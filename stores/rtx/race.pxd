cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.race.old.directory cimport is_split
from limpet.stores.race.old.index cimport Index, is_valid
from limpet.stores.rtx.hash_slots cimport Transactional

cdef u64 ADDRESS_MASK
cdef u64 DIRECTORY_ENTRY
cdef u64 FROZEN
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 OBJECT_MASK
cdef u64 UNSET
cdef u64 LOCKED
cdef int NODE_SHIFT
cdef u64 POINTER

cdef int AGAIN
cdef int DONE
cdef int NO_MEMORY

cdef class RtxGrowing(Transactional):
    cdef int _wait(self, u64 attempt) except -1
    @cython.locals(number=u64, at=u64, version=u64)
    cdef int _split(self) except -1
    @cython.locals(
        table=int, candidate=int, first=u64, second=u64, shift=u64, index=int, word=u64, half=u64,
        held=u64, attempt=u64,
    )
    cdef int _fill_halves(self, object parent, dict halves) except -1
