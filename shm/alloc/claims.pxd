from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.shm.pages cimport *

cdef int LOOKS
cdef int PATIENCE

cdef class Claims:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly object table
    cdef readonly object grace
    cdef readonly object membership
    cdef readonly bint bounded

    cpdef list others(self, u64 node, u64 replicas)
    cpdef list nodes_for(self, u64 node, u64 replicas)

cdef class Spans:
    cdef readonly Claims claims
    cdef readonly Client client
    cdef readonly Heap heap
    cdef readonly object grace
    cdef readonly list owned

    cpdef u64 take(self, u64 node, u64 blocks, u64 replicas) except? 0
