cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport is_vacant
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.log cimport Log
from limpet.stores.transactions.participant cimport Participant
from limpet.stores.transactions.staged cimport NewData

cdef class TXObj(Participant):
    cdef readonly LLLocks locks
    cdef public u64 version
    cdef readonly NewData data
    cdef readonly u64 size
    cdef u64 ticket
    cdef readonly bint locked
    cdef bint applied

    cpdef int stage(
        self, LLLocks locks, u64 at, u64 version, u64 old, NewData data, u64 size
    ) except -1
    cpdef u64 node(self) except? 255
    cpdef list sizes(self)
    cpdef bint reserve(self, Log log, Allocator allocator) except -1
    @cython.locals(reference=u64)
    cpdef bint prepare(self, Log log, Allocator allocator) except -1
    cpdef int write_new(self, Log log) except -1
    cpdef int post_lock(self, u64 state) except -1
    cpdef bint has_locked(self) except -1
    cpdef int publish(self) except -1
    cpdef int release(self, u64 state, bint committed) except -1
    cpdef bint has_applied(self) except -1
    cpdef int undo(self, u64 state) except -1
    @cython.locals(pointer=u64)
    cpdef int unlinked(self, bint committed, list found) except -1
    @cython.locals(pointer=u64)
    cpdef int free_unlinked(self, Log log, bint committed) except -1
    cpdef list named(self, bint committed)
