cimport cython

from limpet.shm.verbs cimport hash64, u64
from limpet.stores.contract cimport as_bytes
from limpet.stores.sherman.lookup cimport Lookup
from limpet.stores.sherman.page cimport Page

cdef u64 ADDRESS_MASK
cdef int SLOTS
cdef int DONE

cdef class Scans(Lookup):
    @cython.locals(attempt=u64)
    cpdef tuple read_range(self, u64 tree, bytes start, bytes high, u64 leaf, int count)
    @cython.locals(page=Page, found=list, leaf=u64, pointer=u64, after=bytes)
    cdef tuple _read_on(self, bytes high, int count)
    cpdef tuple range_here(self, bytes high)
    @cython.locals(page=Page, index=int, end=int, slot=u64)
    cdef bytes _append_range(self, bytes high, list found)
