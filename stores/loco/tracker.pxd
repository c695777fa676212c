cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.loco.layout cimport *

cdef u64 POSITION_MAX

cdef class Tracker:
    cdef readonly Endpoint endpoint
    cdef readonly u64 size
    cdef int shift
    cdef readonly u64 at
    cdef readonly u64 ring

    cpdef int move(self, u64 base) except -1
    cpdef u64 position(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(word=u64)
    cpdef long long message(self, u64 number) except -2
    cdef u64 _lap(self, u64 number) noexcept
    @cython.locals(number='long long')
    cpdef long long append(self, u64 entry) except -2
    @cython.locals(endpoint=Endpoint, number=u64, slot=u64, there=u64, lap=u64)
    cdef long long _try(self, u64 entry) except -2
    cpdef object _damaged(self, u64 number, u64 there)
