cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.snapshot cimport Snapshot
from limpet.stores.race.old.store cimport Growing, is_frozen
from limpet.stores.race.old.index cimport is_valid

cdef u64 ADDRESS_MASK
cdef u64 FROZEN
cdef u64 FROZEN_VACANT
cdef int GROUP_WORDS
cdef int NODE_SHIFT
cdef u64 OBJECT_MASK
cdef u64 OLD
cdef u64 PLACE_BITS
cdef u64 SPLIT
cdef u64 UNSET

cdef int AGAIN
cdef int DONE
cdef int NO_MEMORY

cdef class ReplicatedGrowth(Snapshot):
    cdef int _grow(self, bytes key) except -1
    cdef int _find_memory(self, bytes key) except -1
    @cython.locals(old=u64, first=u64, second=u64, base=u64, home=u64)
    cdef int _split(self) except -1
    @cython.locals(home=u64, pointer=u64, node=u64, new=u64, k=int)
    cdef u64 _obtain(self, u64 number, u64 word) except? 0
    @cython.locals(index=int)
    cdef u64 _freeze(self, u64 base) except? 0
    @cython.locals(word=u64)
    cdef int _freeze_slot(self, u64 slot) except -1
    @cython.locals(held=int)
    cdef int _freeze_pair(self, u64 slot, u64 word) except -1
    @cython.locals(held=int)
    cdef int _freeze_vacant(self, u64 slot, u64 word) except -1
    @cython.locals(k=int)
    cdef int _set(self, u64 slot, u64 word) except -1
    cdef u64 _follow(self, u64 old, u64 offset) except 0
