cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.base cimport as_bytes
from limpet.stores.sherman.lookup cimport Lookup
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes

cdef u64 ADDRESS_MASK
cdef int AHEAD
cdef int LEAVES_MAX
cdef int POINTER
cdef int SLOTS
cdef int DONE

cdef class Scans(Lookup):
    @cython.locals(attempt=u64, hashed=u64)
    cpdef tuple read_range(self, u64 tree, bytes start, bytes high, u64 leaf, u64 ahead, int count)
    @cython.locals(routes=Routes, hint=u64, ahead=u64, _=int)
    cdef u64 _look_ahead(self, u64 tree, u64 hashed, u64 leaf) except? 0
    cdef u64 _fetch(self, Routes routes, u64 ahead) except? 0
    @cython.locals(page=Page, routes=Routes, found=list, at=u64, leaf=u64, pointer=u64, after=bytes)
    cdef tuple _read_on(self, bytes high, int count, u64 ahead)
    cpdef tuple range_here(self, bytes high)
    @cython.locals(page=Page, index=int, end=int, slot=u64)
    cdef bytes _append_range(self, bytes high, list found)
