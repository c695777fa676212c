cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, crc_pair, hash64, u64
from limpet.stores.core.status cimport *
from limpet.stores.sherman.in_place_parameters cimport *
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf, Trees, leaf_of

cdef u64 MASK
cdef u64 MIX

cdef class InPlaceNode(Page):
    cdef u64 seed
    cdef u64[::1] roots
    cdef readonly bint idempotent
    cdef readonly bint whole

    cpdef int read(self, u64 at) except -1
    cpdef int read_image(self, u64 image, u64 at) except -1
    cpdef int post(self, u64 at) except -1
    @cython.locals(words=u64[::1], count=Py_ssize_t, rear=u64, sum_read=u64)
    cpdef int arrived(self, u64 at) except -1
    @cython.locals(words=u64[::1], count=Py_ssize_t)
    cpdef int advance(self, u64 at, u64 state) except -1
    cpdef write(self, u64 at, u64 state)
    @cython.locals(words=u64[::1], version=u64)
    cpdef int put(self, u64 at) except -1
    cpdef int put_image(self, u64 at) except -1
    cpdef bint is_whole(self) except -1
    @cython.locals(index=Py_ssize_t, found=bint)
    cdef bint _is_root(self, u64 at) except -1
    @cython.locals(mixed=u64)
    cdef u64 _checksum(self, u64 at) except? 0

cdef class InPlaceTrees(Trees):
    cdef readonly u64 link
    cdef readonly u64 node_size
    cdef u64 size_class
    cdef readonly bint idempotent
    cdef readonly bint stops

    cpdef Leaf blank(self)
    @cython.locals(node=InPlaceNode)
    cpdef bint read(self, Leaf leaf, u64 at, u64 near) except -1
    @cython.locals(node=InPlaceNode)
    cpdef bint arrived(self, Leaf leaf, u64 at) except -1
    @cython.locals(outcome=int)
    cpdef int find_leaf(self, Leaf leaf, u64 tree, u64 hashed, bytes key, u64 known) except -1
    @cython.locals(outcome=int)
    cpdef int find_leaf_below(self, Leaf leaf, u64 tree, bytes end) except -1
    cpdef u64 stop_word(self, u64 tree) except? 0
    @cython.locals(scope=bint)
    cdef bint _is_stopped(self, u64 tree) except -1
    @cython.locals(routes=Routes, hint=u64)
    cpdef u64 remembered(self, u64 tree, bytes key) except? 0
    @cython.locals(routes=Routes)
    cpdef int forget_route(self, u64 tree, bytes key) except -1
    cpdef u64 reference(self, u64 at) noexcept
