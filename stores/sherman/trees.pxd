cimport cython

from limpet.shm.endpoint.layout cimport NODE_SHIFT
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.stores.core.inline cimport InlineIndex
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.page cimport Page, link_of
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.transactions.layout cimport OBJECT_SIZE
from limpet.stores.transactions.staged cimport Borrowed

cdef int HOPS_MAX

cdef class Leaf(Borrowed):
    cdef readonly Page page
    cdef public u64 tree
    cdef public u64 at
    cdef public u64 lock
    cdef public u64 pointer
    cdef public int index

    cpdef int use_page(self, Page page) except -1

@cython.locals(made=Leaf)
cpdef Leaf leaf_of(Page page)

cdef class Trees(InlineIndex):
    cdef readonly str name
    cdef readonly Endpoint endpoint
    cdef readonly Objects objects
    cdef readonly u64 key_size
    cdef readonly Py_ssize_t value_size
    cdef readonly u64 table_size
    cdef readonly u64[::1] roots
    cdef readonly list routes
    cdef readonly list parents
    cdef bint reads_ahead
    cdef readonly Leaf leaf
    cdef readonly list run

    cpdef Leaf reader(self)
    cpdef Leaf blank(self)
    cpdef bint read(self, Leaf leaf, u64 at, u64 near) except -1
    cpdef Py_ssize_t read_run(
        self, u64 tree, u64 known, u64 hashed, bytes start, bytes high, u64 wanted, Py_ssize_t most
    ) except -1
    cdef int prefetch_node(self, u64 at) except -1
    @cython.locals(hashed=u64)
    cpdef int find_once(self, bytes key, u64 attempt) except -1
    cdef bint is_object(self) except -1
    @cython.locals(page=Page)
    cpdef bytes value_found(self)
    cpdef u64 tree_of(self, bytes key) except? 0
    cdef u64 number_of(self, u64 hashed) noexcept
    cpdef int node_of(self, bytes key) except -1
    cpdef int find(self, Leaf leaf, bytes key) except -1
    cpdef int find_in(self, Leaf leaf, u64 tree, bytes key) except -1
    @cython.locals(page=Page, routes=Routes, at=u64, routed=u64, hint=u64, place=int, hinted=bint, descended=bint, _=int)
    cpdef int find_leaf(self, Leaf leaf, u64 tree, u64 hashed, bytes key, u64 known) except -1
    @cython.final
    cdef bint _is_its_leaf(self, Page page, bytes key, bint hinted) except -1
    cdef u64 near(self, u64 hint) noexcept
    @cython.final
    cdef int note_place(self, Leaf leaf, Routes routes, u64 hashed) except -1
    @cython.locals(page=Page, index=int, hashed=u64)
    cdef int _hint_all(self, Leaf leaf, Routes routes) except -1
    @cython.locals(page=Page, index=int)
    cdef int _note_children(self, Leaf leaf, Routes routes) except -1
    @cython.locals(page=Page, routes=Routes, at=u64, _=int)
    cpdef int find_leaf_below(self, Leaf leaf, u64 tree, bytes end) except -1
    @cython.locals(page=Page)
    cpdef u64 next_hop(self, Leaf leaf, bytes key, u64 level) except? 0
    @cython.locals(value=bytes)
    cpdef bytes value(self, Page page, u64 slot)
    @cython.locals(attempt=u64, index=int, objects=Objects, page=Page)
    cpdef bint is_linked(self, Leaf leaf, u64 reference, look) except -1
