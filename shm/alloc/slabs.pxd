cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, bit, lowest_bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.shm.replicas.replica_layout cimport ReplicaLayout

cdef u64 EXPECTED_SIZE
cdef u64 MASK
cdef u64 NEVER

cdef class Slab:
    cdef readonly Heap heap
    cdef readonly object pages
    cdef readonly u64 node
    cdef readonly u64 block
    cdef readonly int size_class
    cdef readonly u64 replicas
    cdef u64 bits
    cdef u64 first
    cdef u64 size
    cdef u64 row
    cdef readonly u64 count
    cdef readonly u64 words
    cdef readonly u64 backed
    cdef u64[::1] ready
    cdef u64[::1] pending
    cdef public u64 pending_epoch
    cdef readonly u64 pending_count
    cdef readonly u64 ready_count
    cdef u64 cursor
    cdef public u64 kept
    cdef readonly u64 barred
    cdef public u64 aside

    @cython.locals(rest=u64)
    cpdef u64 valid(self, u64 index)
    @cython.locals(word=u64, index=u64)
    cpdef u64 pop(self) except? 0
    @cython.locals(usable=u64)
    cpdef u64 reach(self, u64 count) except? 0
    @cython.locals(begin=u64, end=u64)
    cdef bint _back_more(self, u64 index) except -1
    cpdef int forget_pages(self) except -1
    cdef int _note_backed(self, u64 size) except -1
    cdef int _bar(self) except -1
    @cython.locals(found=u64, index=u64, word=u64)
    cdef u64 _usable(self, u64 most) except? 0
    @cython.locals(index=u64, word=u64)
    cdef u64 _first_bare(self) except? 0
    cpdef int take_pages(self, u64 mask, u64 count) except -1
    cdef u64 left(self, u64 also) noexcept
    @cython.locals(word=u64, following=u64, size=u64, k=u64, there=u64)
    cpdef int prefetch(self) except -1
    @cython.locals(endpoint=Endpoint, bitmap=u64, index=u64, found=u64)
    cpdef u64 note_pending(self) except? 0
    @cython.locals(count=u64, index=u64, found=u64)
    cpdef int ripen(self, u64 horizon) except -1

cdef class Runs:
    cdef readonly Heap heap
    cdef readonly list slabs
    cdef readonly Py_ssize_t cursor

    @cython.locals(count=u64, page=int, slab=Slab, reference=u64)
    cpdef u64 pop(self, u64 size_class) except? 0
    @cython.locals(slab=Slab, count=u64)
    cdef int _take(self, Py_ssize_t index, u64 page, u64 left) except -1
    @cython.locals(last=Py_ssize_t, page=int)
    cpdef int _find(self, u64 count, u64 also) except? -1
    @cython.locals(end=Py_ssize_t, slab=Slab, above=Slab)
    cdef Py_ssize_t _gap_end(self, Py_ssize_t index, u64 also) except -1
    @cython.locals(slab=Slab, length=u64, above=u64, word=u64, page=int)
    cdef int _find_below(self, Py_ssize_t index, u64 count, u64 also) except? -1
    cpdef int shift(self, Py_ssize_t index, int step) except -1
    @cython.locals(slab=Slab)
    cpdef dict ready_pages(self)

@cython.final
cdef class Slabs:
    cdef readonly ReplicaLayout placement
    cdef readonly u64 nodes
    cdef readonly dict kinds
    cdef readonly list current
    cdef readonly Heap heap
    cdef readonly dict runs

    cpdef int know_nodes(self) except -1
    cpdef u64 kind(self, u64 node, u64 size_class, u64 replicas) except? 0
    cpdef list of(self, u64 kind)
    cpdef Runs runs_of(self, u64 node, u64 replicas)
    cpdef list all(self)
    @cython.locals(slab=Slab)
    cpdef Slab next_ready(self, u64 kind)
    cpdef int drop(self, Slab slab) except -1
