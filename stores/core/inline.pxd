cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.base cimport Store, as_bytes
from limpet.stores.core.feed cimport Feed
from limpet.stores.core.feed_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *

cdef object UNPROVEN

cdef class Attempt:
    cdef public int outcome

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
    cdef public bint locks_first
    cdef public bint glances
    cdef readonly bint met_object

    cpdef object glance_at(self, bytes key)
    cpdef int _write(self, key, value, int mode) except -1
    cpdef u64 object_size(self, bytes key, bytes value) except? 0
    @cython.locals(attempt=u64)
    cpdef object run(self, Step step)
    @cython.locals(attempt=u64, outcome=int, way=Attempt)
    cpdef int _change(self, bytes key, bytes value, u64 size, int mode, bytes expected=*) except -1
    @cython.locals(feed=Feed, outcome=int)
    cdef int _change_noted(self, bytes key, bytes value, u64 size, int mode, u64 attempt, Attempt way, bytes expected) except -1
    cpdef object _enter(self, bytes key, u64 attempt, bint writes)
    cpdef int _leave(self, held) except -1
    cpdef Attempt _first_way(self)
    cpdef int _change_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt, Attempt way, bytes expected=*) except -1
    cpdef Attempt _go_on(self, int outcome, Attempt way, bytes key, bytes value, u64 size, int mode)
    cpdef int await_holder(self, u64 attempt, bint writes) except -1
