cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.race.index cimport is_vacant

cdef u64 ADDRESS_MASK
cdef u64 ENTRY_SIZE
cdef u64 FINGERPRINT
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 LINK_MASK
cdef u64 PART_COUNT
cdef u64 PART_ENTRIES
cdef u64 PART_LOG
cdef u64 PART_OWNER
cdef u64 REFERENCE_MASK

cdef class Change:
    cdef readonly u64 slot
    cdef readonly u64 old
    cdef readonly u64 new

cpdef bint is_held(u64 word) noexcept
@cython.locals(valid=u64)
cpdef u64 held_word(u64 part, Change change) except? 0
