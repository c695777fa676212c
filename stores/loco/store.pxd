cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.base cimport Attempt, Window
from limpet.stores.core.inline cimport InlineStore
from limpet.stores.core.status cimport *
from limpet.stores.loco.batch_updates cimport BatchUpdates
from limpet.stores.loco.locking cimport Locking
from limpet.stores.loco.lookup cimport KeyEntry, Lookup
from limpet.stores.loco.writer cimport Writer

cdef class Kvstore(InlineStore):
    cdef readonly Lookup lookup
    cdef readonly KeyEntry found
    cdef readonly Writer writer
    cdef readonly Locking locking
    cdef readonly BatchUpdates updates

    @cython.locals(left=list, end=Py_ssize_t)
    cdef Py_ssize_t _put_some(self, pairs, Py_ssize_t start) except -1
    cpdef object _enter(self, bytes key, u64 attempt, bint writes)
    cpdef int _leave(self, held) except -1
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    cpdef Attempt _make_way(self, int outcome, Attempt way, bytes key, u64 size, int mode)
    cdef int _prefetch_keys(self, list keys) except -1
    cpdef int await_holder(self, u64 attempt, bint writes) except -1
