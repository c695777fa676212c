cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, bit, u64
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.rows cimport Rows

cdef class LockJournal:
    cdef readonly Endpoint endpoint
    cdef public u64 at
    cdef u64 sequence
    cdef u64 count

    @cython.locals(endpoint=Endpoint, index=u64)
    cdef int publish(self, u64[::1] words, u64[::1] bits, u64 count) except -1
    cpdef int say(self, u64 held, u64 unsure, u64 path) except -1
    cpdef int end(self) except -1
    cpdef int step(self, u64 index, u64 row, u64 slot, u64 version) except -1
    @cython.locals(at=u64)
    cpdef int commit(self, Rows rows, u64 place, u64 slot, u64 length) except -1
    @cython.locals(
        endpoint=Endpoint, count=Py_ssize_t, index=Py_ssize_t, at=u64, state=u64, known=u64,
        group=u64, pair=u64, bits=u64, surely=u64, maybe=u64, found=u64,
    )
    cpdef u64 glance(
        self, u64[::1] journals, u64 word, u64[::1] has, u64[::1] may_have
    ) except? 0xFEEDFACEDEADBEA7
    @cython.final
    cdef bint _is_still(self, u64 at, u64 state) except -1
    cpdef u64 owner(self) except? 0xFEEDFACEDEADBEA7
    cpdef int adopt(self, u64 ident) except -1

cdef class Locks:
    cdef readonly Endpoint endpoint
    cdef readonly LockJournal journal
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
    @cython.locals(endpoint=Endpoint, journal=LockJournal, index=u64, bits=u64)
    cpdef bint acquire(self) except -1
    cpdef int release(self, u64 held) except -1
