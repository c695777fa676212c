cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.stores.base cimport as_bytes
from limpet.stores.inline cimport InlineStore
from limpet.stores.records cimport Objects
from limpet.stores.rtx.lllock cimport LLLocks, is_vacant
from limpet.stores.sherman.page cimport Page, link_of
from limpet.stores.sherman.routes cimport Routes

cdef u64 ADDRESS_MASK
cdef int HOPS_MAX
cdef u64 EXTENT
cdef u64 GONE
cdef u64 LOCKED
cdef u64 LOGGED
cdef int OBJECT_SIZE
cdef int NODE_SHIFT
cdef int POINTER
cdef u64 REPLICATED

cdef u64 LINE_MASK
cdef int LINE_SHIFT
cdef u64 PLACE_MASK
cdef int PLACE_SHIFT
cdef u64 ENTRY_SIZE

cdef int AGAIN
cdef int BATCH
cdef int DONE
cdef int NO_MEMORY

cdef class Lookup(InlineStore):
    cdef readonly u64 link
    cdef readonly u64[::1] roots
    cdef readonly list routes
    cdef readonly LLLocks locks
    cdef public object repair
    cdef public Page page
    cdef public u64 tree
    cdef public u64 at
    cdef public u64 lock
    cdef public u64 pointer
    cdef readonly int index
    cdef u64[::1] hints
    cdef u64[::1] pointers

    @cython.locals(page=Page, row=int, place=int, missed=list)
    cpdef list _get_batch(self, list keys, list found)
    @cython.locals(routes=Routes, hashed=u64, hint=u64)
    cdef int _foresee(self, int row, bytes key) except -1
    @cython.locals(pointer=u64, node=u64)
    cdef u64 _approach(self, int row) except? 0
    @cython.locals(endpoint=Endpoint, lock=u64, pointer=u64)
    cdef u64 _pointer_at(self, u64 at) except? 0
    cdef u64 _near(self, u64 hint) noexcept
    cpdef bytes value_here(self)
    cdef int _find_leaf(self, bytes key) except -1
    cpdef u64 tree_of(self, bytes key) except? 0
    cdef u64 _tree_of(self, u64 hashed) noexcept
    cpdef int find_leaf_of(self, u64 tree, bytes key) except -1
    @cython.locals(page=Page, routes=Routes, at=u64, known=u64, hint=u64, place=int, hinted=bint, descended=bint, _=int)
    cpdef int _look(self, u64 tree, u64 hashed, bytes key, u64 leaf) except -1
    @cython.locals(page=Page, index=int, hashed=u64)
    cdef int _hint_all(self, Routes routes) except -1
    @cython.locals(page=Page, index=int)
    cdef int _learn_children(self, Routes routes) except -1
    cpdef u64 next_hop(self, Page page, bytes key, u64 level) except? 0
    @cython.locals(endpoint=Endpoint)
    cpdef bint read_object(self, u64 at, Page page, u64 near=*) except -1
    @cython.locals(value=bytes)
    cpdef bytes _value(self, u64 slot)
    cpdef u64 node_of(self, bytes key) except? 0
    cpdef int stay(self, u64 attempt, bint writes) except -1
    @cython.locals(attempt=u64, index=int, objects=Objects, page=Page)
    cpdef bint is_linked(self, u64 reference) except -1
    @cython.locals(reference=u64)
    cpdef u64 copy_for(self, u64 at, u64 old, u64 state) except? 0
    @cython.locals(page=Page)
    cpdef int copy(self, u64 old, u64 new, u64 state) except -1
