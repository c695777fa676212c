cimport cython

from limpet.shm.endpoint.verbs cimport post_summed, u64, write_summed
from limpet.shm.endpoint.words cimport *
from limpet.stores.records cimport Objects
from limpet.stores.stamps cimport Stamps

cdef u64 MASK
cdef u64 STAMP_SIZE

cdef class StampedObjects(Objects):
    @cython.locals(sizes=u64, seed=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cpdef int write_head(self, u64 reference, bytes key, u64 size, u64 digest) except -1
