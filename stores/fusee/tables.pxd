cimport cython

from limpet.shm.verbs cimport u64
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, is_valid
from limpet.stores.race.table cimport Race

cdef u64 GROUP_SIZE
cdef int NODE_SHIFT
cdef u64 OFFSET_BITS
cdef u64 REFERENCE_MASK
cdef u64 REPLICAS_ROW
cdef u64 REPLICATED
cdef u64 VACANT_CLASS
cdef u64 VIEW

cdef class ReplicatedTables(Race):
    cdef readonly LoggedObjects logged
    cdef readonly u64 entry
    cdef readonly object view
    cdef readonly object tickets
    cdef u64[::1] bases
    cdef u64[::1] counts
    cdef u64 backups
    cdef u64 viewed
    cdef bint looked

    cdef int _place(self, u64 hashed) except -1
    cpdef int _renew(self) except -1
    cpdef bint _look(self) except -1
    cpdef bint _outlive(self, int node) except -1
    cdef u64 _backup(self, u64 slot, u64 k) noexcept
    cdef u64 _home(self, u64 slot) noexcept
    cdef u64 _go_to(self, u64 home) noexcept
    cdef u64 _ticket(self) except 0
    cpdef bint resolve(self, u64 reference, u64 home, bint hurry) except -1
