from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Index, Place

cdef class ReplicatedIndex(Index):
    cdef readonly ReplicatedTables replicated

    cdef int agree(self) except -1
    cdef int agree_to_read(self) except -1
    cdef int locate(self, Place place, u64 hashed) except -1
    cdef int post_locate(self, Place place, u64 hashed) except -1
    cdef bint post_unpinned(self, Place place, u64 hashed) except -1
    cdef bint read_unpinned(self, Place place) except -1
    cdef bint go_on(self, Place place, u64 pointer) except -1
    cpdef u64 base_of(self, u64 pointer) noexcept
