cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.inline cimport InlineStore
from limpet.stores.core.status cimport *
from limpet.stores.sherman.leaf_writer cimport is_sparse
from limpet.stores.sherman.scans cimport Scans
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.sherman.tx_trees cimport TxTrees
from limpet.stores.core.records cimport is_vacant
from limpet.stores.transactions.layout cimport LOCKED
from limpet.stores.transactions.reads cimport Reads, TxKeys, Visitor
from limpet.stores.transactions.staged cimport Borrowed

cdef Py_ssize_t COPIES_MAX

cdef class TreeKeys(TxKeys):
    cdef readonly Client client
    cdef readonly TxTrees trees
    cdef readonly Leaf leaf
    cdef readonly Scans scans

    @cython.locals(store=InlineStore, attempt=u64)
    cpdef object at_key(self, bytes key, Visitor visitor)
    cpdef bytes value_here(self)
    @cython.locals(leaf=Leaf)
    cpdef bint note(self, Reads reads, bytes key, value) except -1
    @cython.locals(leaf=Leaf, made=Leaf)
    cpdef Borrowed copied(self)
    cpdef u64 busy_at(self) except? 255
    cpdef u64 tree_here(self) except? 255
    @cython.locals(store=InlineStore)
    cpdef int refuse(self, bytes key, bytes value) except -1
    cpdef int tidy(self, bytes key) except -1
