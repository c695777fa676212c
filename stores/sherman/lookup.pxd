cimport cython

from limpet.shm.verbs cimport Endpoint, hash64, u64
from limpet.stores.contract cimport Store, as_bytes
from limpet.stores.objects cimport Objects
from limpet.stores.rtx.lllock cimport LLLocks, is_vacant
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes

cdef u64 ADDRESS_MASK
cdef int HOPS_MAX
cdef u64 GONE
cdef u64 LOCKED
cdef u64 LOGGED
cdef int NODE_SHIFT
cdef int PATIENCE
cdef int POINTER
cdef u64 REPLICATED

cdef int AGAIN
cdef int DONE
cdef int NO_MEMORY

cdef class Lookup(Store):
    cdef readonly u64 link
    cdef readonly u64[::1] roots
    cdef readonly list routes
    cdef readonly u64 key_size
    cdef readonly u64 value_size
    cdef readonly Objects objects
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly Page page
    cdef public u64 tree
    cdef public u64 at
    cdef readonly u64 lock
    cdef readonly u64 pointer

    @cython.locals(index=int)
    cpdef bytes value_here(self, bytes key)
    cdef int _find_leaf(self, bytes key) except -1
    cpdef u64 tree_of(self, bytes key) except? 0
    @cython.locals(page=Page, routes=Routes, at=u64, known=u64, hashed=u64, hinted=bint, _=int)
    cpdef int find_leaf_of(self, u64 tree, bytes key) except -1
    cpdef u64 next_hop(self, Page page, bytes key, u64 level) except? 0
    @cython.locals(endpoint=Endpoint)
    cpdef bint read_object(self, u64 at, Page page) except -1
    @cython.locals(page=Page)
    cpdef bytes _value(self, int index)
    cpdef u64 node_of(self, bytes key) except? 0
    @cython.locals(at=u64)
    cpdef int stay(self, u64 attempt, bint writes) except -1
    @cython.locals(outcome=int)
    cdef int _look_until_seen(self, u64 at, bint writes) except -1
    @cython.locals(attempt=u64, index=int, objects=Objects)
    cpdef bint is_linked(self, u64 reference) except -1
    @cython.locals(lane=bint, state=u64)
    cpdef int _look_after(self, u64 at, bint writes) except -1
    @cython.locals(reference=u64)
    cpdef u64 copy_for(self, u64 at, u64 old, u64 state) except? 0
    @cython.locals(page=Page)
    cpdef int copy(self, u64 old, u64 new, u64 state) except -1
