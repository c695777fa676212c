cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.status cimport *
from limpet.stores.sherman.in_place_parameters cimport *
from limpet.stores.sherman.in_place_trees cimport InPlaceNode, InPlaceTrees
from limpet.stores.sherman.layout cimport GONE
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.locks cimport ObjectLocks
from limpet.stores.transactions.staged cimport Staged, StagedNode

cdef class NodeLocks(ObjectLocks):
    cdef u64[::1] roots
    cdef u64 blocks
    cdef u64 node_size
    cdef u64 table_size
    cdef readonly bint in_nodes
    cdef bint idempotent

    @cython.locals(root=u64, first=u64)
    cpdef u64 word(self, u64 at) except? 0
    cpdef int post_release(self, u64 at) except -1

cdef class InPlaceCommit(Staged):
    cdef readonly object store
    cdef readonly InPlaceTrees trees
    cdef Leaf leaf
    cdef readonly NodeLocks node_locks
    cdef public Py_ssize_t wanted
    cdef public u64 tree
    cdef u64[::1] metas
    cdef readonly list held
    cdef readonly set read_under_lock
    cdef readonly dict fresh
    cdef readonly list pairs
    cdef readonly list above

    cpdef begin(self, u64 link)
    cpdef int open(self) except -1
    cdef int memory_node(self) except -1
    @cython.locals(reference=u64, at=u64)
    cpdef u64 new_node(self) except? 0
    cdef list new_extents(self)
    @cython.locals(node=InPlaceNode, ticket=u64)
    cpdef bint lock_and_read(self, Leaf leaf, u64 at) except -1
    @cython.locals(at=u64)
    cpdef int unlock_all(self) except -1
    @cython.locals(index=int)
    cpdef int give_up(self) except -1
    cpdef int run(self) except -1
    cpdef list _sizes(self)
    @cython.locals(index=int, pair=u64)
    cpdef bint _prepare(self) except -1
    @cython.locals(
        rest=list, tickets=list, node=StagedNode, at=u64, index=Py_ssize_t, valid=bint
    )
    cpdef bint _lock_rest(self) except -1
    cpdef bint _is_as_read(self, u64 at, u64 version) except -1
    cpdef list _decide(self)
    @cython.locals(at=u64, node=InPlaceNode)
    cpdef int _write_back(self, list nodes) except -1
    @cython.locals(node=StagedNode, found=list)
    cdef list _going(self)
    @cython.locals(
        nodes=list, written=StagedNode, node=InPlaceNode, blank=InPlaceNode, at=u64, words=u64[::1], locked=bint
    )
    cdef list _in_order(self)
    @cython.locals(index=int)
    cpdef int _finish(self) except -1
