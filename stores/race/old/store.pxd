cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.race.old.directory cimport Directory, is_split
from limpet.stores.race.old.index cimport is_valid
from limpet.stores.race.old.table cimport Race

cdef u64 ADDRESS_MASK
cdef u64 FROZEN
cdef u64 FROZEN_VACANT
cdef int GROUP_WORDS
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 VACANT_CLASS
cdef int NODE_SHIFT
cdef u64 OBJECT_MASK
cdef u64 REFERENCE_MASK
cdef u64 SPLIT
cdef u64 UNSET

cdef int DONE
cdef int FULL
cdef int NO_MEMORY

cpdef bint is_frozen(u64 word) noexcept

cdef class Growing(Directory):
    cdef readonly int objects_needed
    cdef readonly u64 cramped

    cdef int _replace(self, u64 slot, u64 word, u64 desired) except -1
    cdef int _remove(self, u64 slot, u64 word) except -1
    @cython.locals(lane=bint, attempt=u64, outcome=int)
    cdef int _make_room(self, bytes key, bint swept) except -1
    @cython.locals(node=u64)
    cdef int _find_memory(self, bytes key) except -1
    cdef int _wait(self, u64 attempt) except -1
    @cython.locals(enough=bint)
    cdef int _grow(self, bytes key) except -1
    @cython.locals(index=int, frozen=int)
    cdef bint _is_frozen(self) except -1
    @cython.locals(entry=u64, old=u64, first=u64, second=u64)
    cdef int _split(self) except -1
    @cython.locals(entry=u64, pointer=u64, node=u64, new=u64)
    cdef u64 _obtain(self, u64 number, u64 word) except? 0
    cpdef u64 freeze(self, u64 pointer) except? 0
    @cython.locals(index=int, slot=u64, word=u64, frozen=u64)
    cdef u64 _freeze(self, u64 base) except? 0
    @cython.locals(shift=u64, index=int, word=u64, half=int)
    cpdef list halves_of(self, u64 old, list numbers)
    @cython.locals(shift=u64, index=int, word=u64, half=u64)
    cdef int _move(self, u64 base, u64 first, u64 second) except -1
    cdef int _set(self, u64 slot, u64 word) except -1
