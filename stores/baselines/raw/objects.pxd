from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.baselines.raw.layout cimport *
from limpet.stores.records cimport Objects

cdef class RawObjects(Objects):
    cdef readonly u64 room
    cdef bytes empty

    cpdef u64 size_of(self, bytes key, bytes value) except 0
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cpdef bint deleted(self) noexcept
    cpdef bytes value(self)
    cpdef bint fits(self, u64 reference) except -1
    cpdef bint intact(self) except -1
