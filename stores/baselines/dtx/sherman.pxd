from limpet.shm.endpoint.slots cimport INCARNATION_BITS
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.inline cimport InlineStore
from limpet.stores.sherman.in_place_commit cimport NodeLocks
from limpet.stores.sherman.in_place_parameters cimport *
from limpet.stores.sherman.in_place_trees cimport InPlaceTrees
from limpet.stores.sherman.in_place_write_set cimport InPlaceWriter
from limpet.stores.sherman.scans cimport Scans
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.transactions.layout cimport *

cdef u64 KEY_ROOM

cdef class DtxSherman(InlineStore):
    cdef readonly u64 link
    cdef readonly InPlaceTrees trees
    cdef readonly Leaf leaf
    cdef readonly Scans scans
    cdef readonly NodeLocks node_locks
    cdef readonly InPlaceWriter writer
    cdef readonly object recovery

    cpdef Attempt _first_way(self)
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    cpdef Attempt _make_way(self, int outcome, Attempt way, bytes key, u64 size, int mode)
    cpdef int await_holder(self, u64 attempt, bint writes) except -1
