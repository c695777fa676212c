cimport cython

from limpet.shm.endpoint.verbs cimport checksum, u64
from limpet.stores.records cimport Objects

cdef u64 ADDRESS_MASK
cdef u64 HEADER
cdef u64 MASK
cdef u64 PREFIX
cdef u64 UNIT

cdef class CacheObjects(Objects):
    cdef u64[::1] heading

    @cython.locals(sizes=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    @cython.final
    cdef u64 at(self) noexcept
    @cython.final
    cdef u64 checksum(self) except? 0xFEEDFACEDEADBEA7
    @cython.final
    cdef u64 units_of(self, u64 sizes) noexcept
    @cython.final
    cdef u64 units(self) noexcept
