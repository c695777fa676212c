cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, bit, u64
from limpet.stores.rcuckoo.journal cimport Journal
from limpet.stores.rcuckoo.layout cimport *

cdef class Locks:
    cdef readonly Endpoint endpoint
    cdef readonly Journal journal
    cdef public u64 base
    cdef u64 rows_per_lock
    cdef u64 locks
    cdef u64 message
    cdef readonly u64[::1] bits
    cdef readonly u64[::1] words
    cdef u64[::1] messages
    cdef readonly u64 count
    cdef readonly u64 busy
    cdef readonly u64 busy_bits

    cpdef int plan(self) noexcept
    cpdef u64 lock_of(self, u64 row) noexcept
    @cython.locals(lock=u64, message=u64, bits=u64, index=u64)
    cpdef int add(self, u64 row) except -1
    @cython.locals(later=u64)
    cdef int _make_room(self, u64 index) noexcept
    @cython.locals(lock=u64)
    cpdef int wait_for(self, u64 row) noexcept
    @cython.locals(endpoint=Endpoint, index=u64)
    cpdef bint are_free(self) except -1
    @cython.locals(endpoint=Endpoint, journal=Journal, index=u64, bits=u64)
    cpdef bint acquire(self) except -1
    cpdef int release(self, u64 held) except -1
