cimport cython

from limpet.shm.clients.unique_ids cimport Clock
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport Register, is_tombstone, placed, row_of, side_of, stamp_of
from limpet.stores.swarm.replica cimport Buffer, Quorum, Replica
from limpet.stores.swarm.row cimport Row

@cython.final
cdef class WriteBack:
    cdef Quorum quorum
    cdef Row row
    cdef Endpoint endpoint
    cdef Buffer buffer

    @cython.locals(row=Row, row_is_free=bint, outcome=int)
    cdef int run(self, u64 word) except -1
    @cython.locals(row=Row, held=int, copy=u64, n=int, scope=bint)
    cdef int _value(self, u64 word) except -1
    cdef u64 _copy_of(self, u64 word) noexcept
    @cython.locals(pending=int, n=int, outcome=int, replica=Replica)
    cdef bint _put_copy(self, u64 copy) except -1
    @cython.locals(row=Row, own=u64, done=bint, n=int, replica=Replica)
    cdef int _tombstone(self, u64 word) except -1
    @cython.locals(row=Row, n=int, done=bint, replica=Replica)
    cdef int _own(self, u64 word, bytes value) except -1
    @cython.locals(register=Register, at=u64)
    cdef int _name(self, Replica replica, u64 copy) except -1

@cython.final
cdef class MaxRegister:
    cdef readonly bint is_open
    cdef Quorum quorum
    cdef Row row
    cdef WriteBack write_back
    cdef Register register
    cdef Endpoint endpoint

    @cython.locals(quorum=Quorum, outcome=int, attempt=u64, missed=u64)
    cdef int read(self) except -1
    @cython.locals(quorum=Quorum, outcome=int, enough=int, top=u64, n=int, word=u64)
    cdef int _least(self) except -1
    @cython.locals(quorum=Quorum, outcome=int, attempt=u64)
    cpdef int presence(self) except -1
    @cython.locals(quorum=Quorum)
    cdef int confirm(self) except -1
    @cython.locals(quorum=Quorum, n=int, replica=Replica)
    cdef int post_write(self, u64 word, Buffer buffer) except -1
    @cython.locals(quorum=Quorum, n=int, pending=int, refused=bint, outcome=int, replica=Replica)
    cdef int written(self, u64 word, Buffer buffer) except -1
    @cython.locals(
        quorum=Quorum, done=int, pending=int, looked=int, k=int, outcome=int, replica=Replica
    )
    cdef int write(self, u64 word, Buffer buffer) except -1

cdef class Protocol:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row
    cdef Register register
    cdef Endpoint endpoint
    cdef readonly Clock clock
    cdef readonly bytes result

    cpdef int read(self) except -1
    cpdef int write(self, bytes value) except -1
    cdef u64 begin(self, bytes value) except? 0
    cdef int post(self, u64 w) except -1
    cpdef int finish(self, u64 w, int held, bint doubtful) except -1
    @cython.locals(quorum=Quorum, row=Row, scope=bint)
    cdef int mend(self, u64 m, bytes value) except -1

@cython.final
cdef class Insistence:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row

    @cython.locals(quorum=Quorum, row=Row, attempt=u64, placed_word=u64)
    cdef int write(self, u64 word, int outcome) except -1
