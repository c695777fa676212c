cimport cython

from limpet.shm.alloc.claims cimport Claims, Spans
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.alloc.slabs cimport Slab, Slabs
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.shm.pages cimport *

cdef int ATTEMPTS_MAX
cdef u64 COARSE_LEAST
cdef int SHORT_SHARE
cdef int SLACK_SHARE

cdef class Allocator:
    cdef readonly Client client
    cdef readonly Heap heap
    cdef readonly object table
    cdef readonly object grace
    cdef readonly object membership
    cdef readonly Claims claims
    cdef readonly bint is_coherent
    cdef readonly Slabs slabs
    cdef readonly Spans spans
    cdef readonly object relief
    cdef readonly u64 pressure
    cdef readonly bint coarse
    cdef readonly bint refused
    cdef readonly Allocator inner

    cpdef Allocator coherent(self)

    @cython.locals(size_class=int, kind=u64, slabs=Slabs, slab=Slab, reference=u64)
    cpdef u64 allocate(self, u64 node, u64 size, u64 replicas=*) except? 0
    cdef Slab _still_usable(self, Slab slab, u64 node, u64 kind)
    @cython.locals(slabs=Slabs, other=u64, there=u64, reference=u64)
    cdef u64 _pop_elsewhere(self, u64 node, int size_class, u64 replicas, u64 kind) except? 0
    @cython.locals(slab=Slab, reference=u64)
    cdef u64 _pop(self, u64 kind, u64 node) except? 0
    @cython.locals(reference=u64)
    cdef u64 _take_span(self, u64 node, u64 size, u64 replicas) except? 0
    cpdef int begin_batch(self) except -1
    @cython.locals(size_class=int, kind=u64, slabs=Slabs, slab=Slab)
    cpdef u64 next_object(self, u64 node, u64 size, u64 replicas) except? 0
    @cython.locals(wide=u64)
    cpdef u64 coarsened(self, u64 size) except? 0
