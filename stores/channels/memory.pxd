cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.records cimport Objects
from limpet.stores.channels.renewal cimport Renewing

cdef u64 ADDRESS_MASK
cdef u64 DESCRIPTION
cdef u64 DESCRIPTION_SIZE
cdef u64 HEADER
cdef u64 LINE
cdef u64 MASK

cdef class RegionObjects(Objects):
    @cython.locals(sizes=u64)
    cpdef int write(self, u64 reference, bytes key, bytes value) except -1
    cpdef bint intact(self) except -1

cdef int AGAIN
cdef int DONE
cdef int FULL
cdef int MISSING

cdef class ChannelMemory(Renewing):
    cpdef u64 locate(self, bytes key) except? 0
    cdef u64 _value(self, bytes key) noexcept
    @cython.locals(slot=u64)
    cdef int _delete_once(self, bytes key) except -1
    @cython.locals(slot=u64, outcome=int)
    cdef int _sweep(self, bytes key) except -1
    @cython.locals(reference=u64, index=int)
    cpdef int unlink(self, u64 link) except -1
