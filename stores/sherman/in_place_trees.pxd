cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.stores.sherman.in_place_layout cimport *
from limpet.stores.sherman.in_place_node cimport Node
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf, Trees, leaf_of
from limpet.stores.status cimport *

cdef class InPlaceTrees(Trees):
    cdef readonly u64 link
    cdef readonly u64 node_size
    cdef u64 size_class
    cdef readonly bint idempotent
    cdef readonly bint stops

    cpdef Leaf blank(self)
    @cython.locals(node=Node)
    cpdef bint read(self, Leaf leaf, u64 at, u64 near) except -1
    @cython.locals(outcome=int)
    cpdef int look(self, Leaf leaf, u64 tree, u64 hashed, bytes key, u64 known) except -1
    @cython.locals(outcome=int)
    cpdef int look_below(self, Leaf leaf, u64 tree, bytes end) except -1
    cpdef u64 stop_word(self, u64 tree) except? 0
    @cython.locals(scope=bint)
    cdef bint _is_stopped(self, u64 tree) except -1
    @cython.locals(routes=Routes, hint=u64)
    cpdef u64 remembered(self, u64 tree, bytes key) except? 0
    @cython.locals(routes=Routes)
    cpdef int forget_route(self, u64 tree, bytes key) except -1
    cpdef u64 reference(self, u64 at) noexcept
