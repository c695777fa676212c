cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport DROPS
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport is_vacant
from limpet.stores.core.status cimport *
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf, Trees
from limpet.stores.transactions.layout cimport LOCKED, LOGGED

cdef u64 DOUBT
cdef u64 EACH
cdef u64 SMOOTHING
cdef u64 SURE
cdef u64 SURE_MAX

cdef class TxTrees(Trees):
    cdef readonly Client client
    cdef readonly u64 node_size
    cdef readonly u64 object_count
    cdef readonly u64 capacity
    cdef public u64 cursor
    cdef list spares
    cdef readonly u64[::1] words
    cdef public u64 sure
    cdef readonly u64 entries
    cdef readonly u64[::1] ats
    cdef readonly u64[::1] guesses
    cdef u64[::1] hints
    cdef list pages

    cpdef Leaf reader(self)
    @cython.locals(leaf=Leaf)
    cpdef Leaf blank(self)
    cpdef u64 next_vacant(self) noexcept
    @cython.locals(
        endpoint=Endpoint, page=Page, routes=Routes, guess=u64, guessed=bint, pointer=u64
    )
    cpdef bint read(self, Leaf leaf, u64 at, u64 near) except -1
    @cython.locals(hashed=u64, leaf=Leaf, page=Page, routes=Routes, hint=u64, at=u64)
    cdef int glance(self, bytes key) except -1
    @cython.locals(at=u64, lock=u64)
    cdef bint proves(self, Endpoint endpoint, u64 drops) except -1
    @cython.final
    cdef int _prefetch(self, Page page, u64 node, u64 near) except -1
    @cython.final
    cdef int _learn(self, bint right) except -1
    @cython.locals(routes=Routes, hint=u64, first=u64, before=u64, count=Py_ssize_t)
    cpdef Py_ssize_t read_run(
        self, u64 tree, u64 known, u64 hashed, bytes start, bytes high, u64 wanted, Py_ssize_t most
    ) except -1
    @cython.final
    @cython.locals(row=Py_ssize_t, found=u64, entries=u64)
    cdef Py_ssize_t _enough(self, Routes routes, Py_ssize_t count, u64 wanted) except -1
    @cython.locals(
        endpoint=Endpoint, sure=bint, row=Py_ssize_t, leaf=Leaf, page=Page, guess=u64, pointer=u64,
        waits=bint,
    )
    cpdef Py_ssize_t _read_all(self, u64 tree, Routes routes, Py_ssize_t count) except -1
    cdef int prefetch_node(self, u64 at) except -1
    @cython.locals(page=Page)
    cpdef bint recall(self, Leaf leaf, bytes key) except -1
    @cython.locals(at_once=bint, page=Page, row=int, missed=list)
    cpdef list get_batch(self, list keys, list found)
    @cython.final
    @cython.locals(place=int)
    cdef int _take(self, int row, bytes key, Page page, list found, list missed) except -1
    @cython.locals(routes=Routes, hashed=u64, hint=u64)
    cdef int _prefetch_leaf(self, int row, bytes key) except -1
    @cython.locals(lock=u64, pointer=u64, node=u64)
    cdef int _approach(self, int row) except -1
    @cython.locals(page=Page)
    cpdef int copy(self, u64 old, u64 new, u64 state) except -1
