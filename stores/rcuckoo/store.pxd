cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport REPLICATED
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.inline cimport InlineStore
from limpet.stores.core.status cimport *
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.locks cimport Locks
from limpet.stores.rcuckoo.lookup cimport KeyRows, Lookup
from limpet.stores.rcuckoo.writer cimport Plan, Writer

cdef u64 PATIENCE
cdef int LOST_MAX

cdef class Rcuckoo(InlineStore):
    cdef readonly u64 link
    cdef readonly Lookup lookup
    cdef readonly KeyRows found
    cdef readonly Writer writer

    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(plan=Plan)
    cpdef Attempt _make_way(self, int outcome, Attempt way, bytes key, u64 size, int mode)
    cpdef int await_holder(self, u64 attempt, bint writes) except -1
    @cython.final
    @cython.locals(turn=u64)
    cdef bint _is_to_look(self, u64 attempt) noexcept
    @cython.locals(attempt=int, word=u64, base=u64)
    cdef int _refuse_stray(self) except -1
    @cython.locals(lookup=Lookup, base=u64)
    cdef u64 _table_with(self, u64 word) except? 0
    @cython.locals(word=u64)
    cpdef int recover_holder(self) except -1
