cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.clients.unique_ids cimport Clock, Tickets
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport INCARNATION_BITS, START_US
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport vacant_word
from limpet.stores.transactions.layout cimport *

cdef class LLLocks:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly Clock clock
    cdef readonly Tickets tickets
    cdef public u64 drift_us
    cdef public u64 each_us
    cdef readonly u64[::1] words
    cdef readonly u64[::1] word
    cdef readonly u64[::1] in_use

    cpdef int forget(self) except -1
    @cython.locals(slot=u64)
    cpdef u64 draw(self, u64 logged) except 0
    cpdef u64 post_acquire(self, u64 at, u64 version, u64 state) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_release(self, u64 at, u64 state) except? 0xFEEDFACEDEADBEA7
    cpdef u64 post_install(self, u64 at, u64 old, u64 new) except? 0xFEEDFACEDEADBEA7
    @cython.locals(ticket=u64)
    cpdef bint release(self, u64 at, u64 state) except -1
    cpdef u64 vacated(self) except 0
    cpdef u64 lease(self, u64 objects) except 0
    cpdef u64 now(self) except? 0
    cpdef bint is_expired(self, u64 state) except -1

cpdef u64 slot_of(u64 state) noexcept
cpdef u64 slot_at(u64 state) noexcept
