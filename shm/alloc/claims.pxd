from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint
from limpet.shm.endpoint.words cimport *

cdef class Claims:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly object table
    cdef readonly object grace
    cdef readonly object membership
    cdef readonly bint bounded
