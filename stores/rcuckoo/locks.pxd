cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.rows cimport Entry

@cython.final
cdef class LockJournal:
    cdef readonly Endpoint endpoint
    cdef public u64 at
    cdef public u64 sequence
    cdef u64 count
    cdef u64[::1] held
    cdef u64[::1] path
    cdef readonly u64 steps

    cpdef int adopt(self, u64 ident) except -1
    cdef u64 _state(self, u64 path) noexcept
    @cython.locals(index=u64)
    cpdef int post_held(self, u64[::1] words, u64 count) except -1
    cpdef int step(self, u64 row, u64 slot, u64 sequence) noexcept
    @cython.locals(size=Py_ssize_t, index=Py_ssize_t)
    cpdef int post_path(self, Entry entry) except -1

@cython.final
cdef class Locks:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly LockJournal journal
    cdef public u64 base
    cdef u64 rows_per_lock
    cdef u64 locks
    cdef u64 message
    cdef readonly u64[::1] words
    cdef u64[::1] tickets
    cdef readonly u64 count
    cdef u64 posted
    cdef u64 held
    cdef readonly u64 busy

    cpdef int plan(self) noexcept
    cpdef u64 lock_at(self, u64 row) noexcept
    @cython.locals(word=u64, index=u64, later=u64)
    cpdef int add(self, u64 row) except -1
    cpdef int wait_for(self, u64 row) noexcept
    cpdef u64 message_of(self, u64 index) noexcept
    @cython.locals(endpoint=Endpoint, index=u64)
    cpdef bint are_free(self) except -1
    cpdef bint acquire(self) except -1
    @cython.locals(endpoint=Endpoint, index=u64, ident=u64, ticket=u64)
    cdef int _post_message(self) except -1
    @cython.locals(endpoint=Endpoint)
    cpdef bint are_taken(self) except -1
    @cython.locals(endpoint=Endpoint, index=u64, ident=u64)
    cpdef int post_release(self, u64 count) except -1
