cimport cython

from limpet.shm.clients.unique_ids cimport Tickets
from limpet.shm.endpoint.verbs cimport post_summed, u64, write_summed
from limpet.stores.records cimport Objects

cdef u64 ADDRESS_MASK
cdef u64 MASK
cdef u64 SCRAMBLE
cdef u64 STAMP_SIZE

cdef class StampedObjects(Objects):
    cdef readonly Tickets tickets

    @cython.locals(sizes=u64, seed=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cdef u64 _stamp(self) except? 0
