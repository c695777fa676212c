cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.base cimport Attempt, Store, as_bytes
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *

cdef object UNPROVEN

cdef class Step:
    cdef public object result

    cpdef int once(self) except -1

cdef class InlineIndex:
    cpdef int find_once(self, bytes key, u64 attempt) except -1
    cdef int glance(self, bytes key) except -1
    cdef bint is_object(self) except -1
    cdef bint proves(self, Endpoint endpoint, u64 drops) except -1
    cpdef bytes value_found(self)
    cpdef list get_batch(self, list keys, list found)
    cpdef int node_of(self, bytes key) except -1

cdef class InlineStore(Store):
    cdef readonly u64 key_size
    cdef readonly u64 value_size
    cdef readonly Objects objects
    cdef public InlineIndex index
    cdef readonly bint unpinned

    cpdef int glance(self) except -1
    cpdef object glance_at(self, bytes key)
    @cython.locals(outcome=int)
    cpdef object get_once(self, bytes key, u64 attempt, long long at)
    cpdef list get_batch(self, list keys, list found)
    cpdef int _write(self, key, value, int mode) except -1
    cpdef u64 object_size(self, bytes key, bytes value) except? 0
    @cython.locals(attempt=u64)
    cpdef object run(self, Step step)
    cpdef Attempt _first_way(self)
    cpdef Attempt _go_on(
        self, int outcome, Attempt way, bytes key, bytes value, u64 size, int mode, u64 attempt
    )
    cpdef Attempt _make_way(self, int outcome, Attempt way, bytes key, u64 size, int mode)
    cpdef int await_holder(self, u64 attempt, bint writes) except -1
