cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.core.status cimport *
from limpet.stores.sherman.in_place_commit cimport InPlaceCommit
from limpet.stores.sherman.in_place_parameters cimport *
from limpet.stores.sherman.in_place_trees cimport InPlaceTrees
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.leaf_writer cimport is_sparse
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.sherman.write_set cimport TreeWay, WriteSet, as_staged, commit_staged
from limpet.stores.transactions.layout cimport SPARED_BLOCKS

cdef int LEAF_ATTEMPTS

cdef class InPlaceStaging(WriteSet):
    cdef readonly InPlaceCommit own
    cdef InPlaceTrees in_place
    cdef Leaf leaf
    cdef bint optimistic
    cdef bint shrinks

    @cython.locals(outcome=int)
    cpdef int stage(self, bytes key, bytes value, int mode=*) except -1
    @cython.locals(leaf=Leaf, outcome=int)
    cpdef int change(self, u64 tree, u64 level, bytes key, bytes value) except -1
    cpdef int shrink(self, bytes key) except -1
    @cython.locals(index=Py_ssize_t)
    cpdef int link_above(self, u64 level, list lows, list nodes) except -1
    cpdef u64 _vacant(self) except? 0
    cpdef int _vacate_root(self, Page page) except -1
    @cython.locals(leaf=Leaf, hashed=u64, words=u64[::1])
    cpdef Leaf _leaf(self, bytes key)
    @cython.locals(trees=InPlaceTrees, leaf=Leaf, at=u64, _=int)
    cdef Leaf _locked_leaf(self, bytes key)
    @cython.locals(leaf=Leaf, _=int)
    cdef Leaf _locked(self, bytes key, u64 level)
    @cython.locals(commit=InPlaceCommit, page=Page, words=u64[::1])
    cdef bint _lock(self, Leaf leaf, u64 at, bytes key, u64 level) except -1
    @cython.locals(page=Page, leaf=Leaf, words=u64[::1])
    cpdef Leaf _read(self, u64 at)

cdef class InPlaceWay(TreeWay):
    cdef readonly object staging
    cdef readonly InPlaceCommit own

cdef class InPlaceWriter:
    cdef readonly object store
    cdef readonly Leaf leaf
    cdef public object commit
    cdef readonly list spares

    cpdef InPlaceWay first_way(self)
    @cython.locals(outcome=int)
    cpdef int change_once(self, InPlaceWay way, bytes key, bytes value, int mode) except -1
    cpdef TreeWay go_on(self, int outcome, InPlaceWay way, bytes key, int mode)
    cpdef int await_holder(self, u64 attempt) except -1
