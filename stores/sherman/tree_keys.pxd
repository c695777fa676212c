from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rtx.reads cimport ObjectRead, Reads, TxKeys, Visitor
from limpet.stores.sherman.leaf_writer cimport is_sparse
from limpet.stores.sherman.scans cimport Scans
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.sherman.tx_trees cimport TxTrees

cdef int DONE

cdef class TreeKeys(TxKeys):
    cdef readonly TxTrees trees
    cdef readonly Leaf leaf
    cdef readonly Scans scans

    cpdef object at_key(self, bytes key, Visitor visitor)
    cpdef bytes value_here(self)
    cpdef bint note(self, Reads reads, bytes key, value) except -1
    cpdef u64 busy_at(self) except? 255
