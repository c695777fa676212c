cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, bit, lowest_bit, u64

cdef u64 ADDRESS_MASK
cdef int ATTEMPTS_MAX
cdef u64 COARSE_LEAST
cdef u64 EXPECTED_SIZE
cdef int LARGE
cdef int LARGE_CLASS
cdef u64 MASK
cdef u64 NEVER
cdef int PATIENCE
cdef u64 PRESSURE
cdef int SHORT_SHARE
cdef int SLAB
cdef int SLACK_SHARE

cdef class Slab:
    cdef readonly Heap heap
    cdef readonly u64 node
    cdef readonly u64 block
    cdef readonly int size_class
    cdef readonly u64 replicas
    cdef u64 bits
    cdef u64 row
    cdef readonly u64 count
    cdef readonly u64 words
    cdef u64[::1] ready
    cdef u64[::1] pending
    cdef public u64 pending_epoch
    cdef readonly u64 pending_count
    cdef readonly u64 ready_count
    cdef u64 cursor
    cdef public u64 kept

    @cython.locals(rest=u64)
    cpdef u64 valid(self, u64 index)
    @cython.locals(word=u64, bit=int, index=u64)
    cpdef u64 pop(self) except? 0
    @cython.locals(word=u64, index=u64, following=u64, size=u64, k=u64, there=u64)
    cpdef int expect(self) except -1
    @cython.locals(endpoint=Endpoint, bitmap=u64, index=u64, found=u64)
    cpdef u64 look(self) except? 0
    @cython.locals(index=u64)
    cpdef int ripen(self, u64 horizon) except -1

cdef class Allocator:
    cdef readonly Client client
    cdef readonly Heap heap
    cdef readonly object table
    cdef readonly object grace
    cdef readonly object membership
    cdef readonly u64 nodes
    cdef readonly dict slabs
    cdef readonly list current
    cdef readonly list spans
    cdef readonly u64 pressure
    cdef dict spared
    cdef u64 sparing
    cdef bint growing
    cdef readonly bint coarse
    cdef readonly bint refused
    cdef readonly bint bounded
    cdef readonly Allocator inner

    cpdef Allocator coherent(self)

    @cython.locals(size_class=int, key=u64, slab=Slab, reference=u64)
    cpdef u64 allocate(self, u64 node, u64 size, u64 replicas=*) except? 0
    @cython.locals(wide=u64)
    cpdef u64 coarsened(self, u64 size) except? 0
    cpdef u64 key(self, u64 node, u64 size_class, u64 replicas) except? 0
    @cython.locals(slab=Slab)
    cdef Slab _next_slab(self, u64 key)
    cdef u64 _allocate_span(self, u64 node, u64 size, u64 replicas) except? 0
