cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.holders.holders cimport Holders
from limpet.stores.channels.holders.layout cimport *

cdef class Semaphore(Holders):
    cdef readonly bint bounded

    cpdef bint acquire(self, bint blocking=*, timeout=*) except -1
    @cython.locals(
        looked=bint, taken=u64, part=u64, row=u64, held=u64, below=bint, free=u64, over=bint,
        value=u64, state=u64,
    )
    cdef u64 _release(self, u64 n) except 0
    @cython.locals(row=u64)
    cdef u64 _other(self) except? 0xFEEDFACEDEADBEA7
