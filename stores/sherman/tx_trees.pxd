cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.stores.vacant cimport is_vacant
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf, Trees, leaf_of

cdef u64 ADDRESS_MASK
cdef u64 ENTRY_SIZE
cdef u64 GONE
cdef u64 LOCKED
cdef u64 LOGGED
cdef int POINTER
cdef u64 PLACE_MASK
cdef int PLACE_SHIFT
cdef int BATCH

cdef class TxTrees(Trees):
    cdef readonly Client client
    cdef readonly u64 node_size
    cdef readonly u64 object_count
    cdef readonly u64 capacity
    cdef public u64 cursor
    cdef list spares
    cdef u64[::1] hints
    cdef u64[::1] pointers

    cpdef Leaf reader(self)
    @cython.locals(page=Page)
    cpdef Leaf blank(self)
    cpdef u64 next_vacant(self) noexcept
    @cython.locals(endpoint=Endpoint, page=Page)
    cpdef bint read(self, Leaf leaf, u64 at, u64 near) except -1
    @cython.locals(endpoint=Endpoint, lock=u64, pointer=u64)
    cpdef u64 pointer_at(self, u64 at) except? 0
    cdef int foresee(self, u64 at) except -1
    @cython.locals(page=Page)
    cpdef bint recall(self, Leaf leaf, bytes key) except -1
    @cython.locals(page=Page, row=int, place=int, missed=list)
    cpdef list get_batch(self, list keys, list found)
    @cython.locals(routes=Routes, hashed=u64, hint=u64)
    cdef int _foresee(self, int row, bytes key) except -1
    @cython.locals(pointer=u64, node=u64)
    cdef u64 _approach(self, int row) except? 0
    @cython.locals(page=Page)
    cpdef int copy(self, u64 old, u64 new, u64 state) except -1
