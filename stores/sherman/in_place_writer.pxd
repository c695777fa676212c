cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rtx.repair cimport *
from limpet.stores.sherman.in_place_commit cimport InPlaceCommit
from limpet.stores.sherman.in_place_write_set cimport InPlaceStaging
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.leaf_writer cimport is_sparse
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.sherman.write_set cimport TreeWay, commit_staged
from limpet.stores.status cimport *

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
    cpdef int stay(self, u64 attempt) except -1
