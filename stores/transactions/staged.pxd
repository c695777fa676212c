cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64

cdef Py_ssize_t FEW
cdef Py_ssize_t KEPT
cdef Py_ssize_t SPARES_MAX

cdef class NewData:
    cdef public u64 size

    cpdef write(self, u64 at, u64 state)

cdef class Borrowed:
    cdef public list spares

    cpdef int give_back(self) except -1

cdef class StagedNode:
    cdef readonly u64 at
    cdef readonly u64 version
    cdef readonly u64 pointer
    cdef readonly bint expected
    cdef readonly bint written
    cdef readonly NewData page
    cdef readonly u64 size
    cdef readonly object store
    cdef readonly bytes key

    cdef int stage(self, u64 at) except -1
    cdef int forget(self) except -1

cdef class Staged:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef public Allocator allocator
    cdef readonly Heap heap
    cdef readonly object membership
    cdef public object reads
    cdef public u64 link
    cdef readonly list nodes
    cdef readonly Py_ssize_t nodes_count
    cdef dict places
    cdef readonly Py_ssize_t changed
    cdef public list extents
    cdef public dict dropped
    cdef readonly list lent
    cdef public u64 busy

    @cython.locals(index=Py_ssize_t, node=StagedNode)
    cpdef begin(self, u64 link)
    @cython.locals(leaf=Borrowed)
    cpdef int give_back(self) except -1
    @cython.locals(index=Py_ssize_t, node=StagedNode)
    cpdef StagedNode node_at(self, u64 at)
    @cython.locals(index=Py_ssize_t, found=StagedNode, node=StagedNode, other=StagedNode)
    cdef StagedNode _node_of(self, u64 at)
    @cython.locals(node=StagedNode)
    cpdef bint is_written(self, u64 at) except -1
    @cython.locals(node=StagedNode)
    cpdef NewData page_at(self, u64 at)
    @cython.locals(node=StagedNode)
    cpdef u64 version_of(self, u64 at) except? 0
    @cython.locals(index=Py_ssize_t, node=StagedNode)
    cpdef list all_written(self)
    @cython.locals(node=StagedNode)
    cpdef int expect(self, u64 at, u64 version, u64 pointer=*) except -1
    cpdef int write(self, u64 at, NewData page) except -1
    @cython.locals(node=StagedNode)
    cpdef int write_for(self, u64 at, NewData page, store, bytes key) except -1
