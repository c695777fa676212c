cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.baselines.dtx.locks cimport ObjectLocks

cdef class NodeLocks(ObjectLocks):
    cdef u64[::1] roots
    cdef u64 blocks
    cdef u64 node_size
    cdef u64 table_size
    cdef readonly bint in_nodes
    cdef bint idempotent

    @cython.locals(root=u64, first=u64)
    cpdef u64 word(self, u64 at) except? 0
    cpdef int release(self, u64 at) except -1
