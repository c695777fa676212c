cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *

# REGIONS_MAX and REGION_SIZE are for others to import, and of use once a pool.
cdef int NODES
cdef int REGIONS_MIN

cdef class ReplicaLayout:
    cdef readonly u64 nodes
    cdef readonly list rings
    cdef readonly u64[::1] firsts
    cdef readonly u64[::1] counts
    cdef readonly u64 region_blocks
    cdef readonly int region_shift
    cdef readonly u64 regions
    cdef readonly u64 first
    cdef readonly u64 replicas_max
    cdef readonly u64[::1] limits

    cpdef int check(self, u64 replicas) except -1
    @cython.locals(region=u64)
    cpdef long long part(self, u64 block, u64 replicas) noexcept
    cpdef bint same_region(self, u64 block, u64 other) noexcept
    @cython.locals(region=u64, there=u64, count=u64, known=bint)
    cpdef u64 node_of(self, u64 node, u64 block, u64 replicas, u64 steps) except? 255
