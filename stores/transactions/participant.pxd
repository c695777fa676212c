cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.transactions.entry_log cimport LogEntry
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.log cimport Log

cdef u64 STRIDE

cpdef int go_on(membership, u64 count) except -1

cdef class Participant(LogEntry):
    cdef public u64 busy

    cpdef int describe(self, u64 at, u64 old, u64 new) except -1
    cpdef u64 node(self) except? 255
    cpdef list sizes(self)
    cpdef bint reserve(self, Log log, Allocator allocator) except -1
    cpdef int write_new(self, Log log) except -1
    cpdef bint prepare(self, Log log, Allocator allocator) except -1
    cpdef int post_lock(self, u64 state) except -1
    cpdef bint has_locked(self) except -1
    cpdef bint validate(self) except -1
    cpdef int publish(self) except -1
    cpdef int release(self, u64 state, bint committed) except -1
    cpdef bint has_applied(self) except -1
    cpdef int undo(self, u64 state) except -1
    cpdef int unlinked(self, bint committed, list found) except -1
    @cython.locals(found=list, reference=u64)
    cpdef int free_unlinked(self, Log log, bint committed) except -1
    cpdef list named(self, bint committed)

cdef class Extent(Participant):
    cdef readonly u64 link_address
    cdef readonly object staging
    cdef readonly u64 leaf
    cdef readonly tuple pair

    cpdef u64 node(self) except? 255
    cpdef list sizes(self)
    cpdef bint reserve(self, Log log, Allocator allocator) except -1
    @cython.locals(reference=u64)
    cpdef bint prepare(self, Log log, Allocator allocator) except -1
    @cython.locals(reference=u64)
    cpdef int unlinked(self, bint committed, list found) except -1
    cpdef list named(self, bint committed)
