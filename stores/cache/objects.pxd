cimport cython

from limpet.shm.endpoint.verbs cimport checksum, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.cache.layout cimport *
from limpet.stores.object_layout cimport *
from limpet.stores.records cimport Objects

cdef u64 MASK

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
