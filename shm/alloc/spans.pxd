from limpet.shm.alloc.claims cimport Claims
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *

cdef class Spans:
    cdef readonly Claims claims
    cdef readonly Client client
    cdef readonly Heap heap
    cdef readonly object grace
    cdef readonly list owned

    cpdef u64 take(self, u64 node, u64 blocks, u64 replicas) except? 0
