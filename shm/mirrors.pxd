cimport cython

from limpet.shm.verbs cimport u64

cdef u64 NO_ROUND
cdef int TURNS_SHIFT

cdef class Placement:
    cdef readonly u64 nodes
    cdef readonly u64 region_blocks
    cdef readonly int region_shift
    cdef readonly u64 regions
    cdef readonly u64 first
    cdef readonly u64 replicas_max
    cdef readonly unsigned char[::1] ring
    cdef readonly unsigned char[::1] places
    cdef readonly unsigned char[::1] turns

    cpdef int check(self, u64 replicas) except -1
    @cython.locals(region=u64)
    cpdef long long part(self, u64 block, u64 replicas)
    @cython.locals(region=u64, turn=u64, known=bint)
    cpdef u64 node_of(self, u64 node, u64 block, u64 replicas, u64 steps) except? 0
