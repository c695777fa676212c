cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.sherman.page cimport Page

cdef class Staged:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef public Allocator allocator
    cdef readonly Heap heap
    cdef readonly object membership
    cdef public object reads
    cdef public u64 link
    cdef public dict pages
    cdef public dict versions
    cdef public list extents
    cdef public dict dropped
    cdef public dict owners
    cdef readonly list lent
    cdef public u64 busy

    cpdef begin(self, u64 link)
    @cython.locals(page=Page)
    cpdef int give_back(self) except -1
    cpdef int expect(self, u64 at, u64 version) except -1
    cpdef int write(self, u64 at, page) except -1
