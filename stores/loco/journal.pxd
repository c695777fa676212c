cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.loco.data_array cimport DataArray
from limpet.stores.loco.layout cimport *

cdef u64 SEQUENCE_MASK

cdef class Journal:
    cdef readonly Endpoint endpoint
    cdef public u64 at
    cdef u64 sequence

    @cython.locals(word=u64)
    cpdef u64 intent(self) except? 0xFEEDFACEDEADBEA7
    cpdef u64 resume(self, u64 at, u64 word) noexcept
    cpdef u64 claim(self) except? 0xFEEDFACEDEADBEA7
    cpdef int declare(self, u64 what, u64 entry, u64 claim) except -1
    cpdef int keep(self, DataArray entries, u64 count) except -1
    cpdef int load(self, DataArray entries) except -1
    cpdef int end(self) except -1
