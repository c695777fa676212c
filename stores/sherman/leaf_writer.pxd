cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport NODE_SHIFT
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects, is_vacant
from limpet.stores.core.status cimport *
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.sherman.tx_trees cimport TxTrees
from limpet.stores.transactions.changes cimport begin_change, end_change
from limpet.stores.transactions.layout cimport EXTENT_PAIR, LOCKED
from limpet.stores.transactions.lllock cimport LLLocks

cpdef bint is_sparse(Page page) except -1

cdef class LeafWriter:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Allocator allocator
    cdef readonly TxTrees trees
    cdef readonly Leaf leaf
    cdef readonly LLLocks locks
    cdef readonly u64 link
    cdef readonly Py_ssize_t ended

    @cython.locals(leaf=Leaf, page=Page, index=int, dropped=u64, new=u64, extent=u64, outcome=int)
    cpdef int change(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(leaf=Leaf, page=Page, key=bytes, index=int, at_end=bint, new=u64)
    cpdef int change_run(self, list keys, list values, Py_ssize_t first) except -1
    @cython.locals(page=Page)
    cdef bint _set(self, int index, bytes key, bytes value, u64 flags) except -1
    @cython.locals(done=int)
    cdef int _commit(self, u64 new, int news, u64 dropped) except -1
    @cython.final
    @cython.locals(leaf=Leaf, routes=Routes)
    cdef int _note(self, u64 new) except -1
    @cython.locals(state=u64, ticket=u64, done=bint)
    cdef int _put_there(self, Page page, u64 new, int news, u64 dropped) except -1
    @cython.locals(leaf=Leaf, new=u64)
    cpdef int change_alone(self, u64 at, u64 version, u64 pointer, Page page) except -1
    @cython.locals(client=Client, at=u64, old=u64)
    cdef u64 _post_lock(self, u64 state, u64 dropped) except? 0xFEEDFACEDEADBEA7
    @cython.locals(ticket=u64)
    cdef bint _install(self, u64 new, u64 state) except -1
    @cython.locals(client=Client, index=int)
    cdef int _settle_hand(self, int news, bint done) except -1
    @cython.locals(
        leaf=Leaf, page=Page, routes=Routes, hashed=u64, hint=u64, at=u64, lock=u64, pointer=u64,
        new=u64, state=u64, ticket=u64,
    )
    cpdef int change_early(self, bytes key, bytes value, int mode, u64 attempt) except -1
    @cython.locals(page=Page, place=int)
    cdef int _look_up(self, bytes key, u64 hint) except -1
    @cython.locals(page=Page, index=int, dropped=u64, outcome=int, done=int)
    cdef int _change_locked(self, bytes key, bytes value, int mode, u64 new, u64 state) except -1
