cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Register
from limpet.stores.swarm.replica cimport Buffer, Replica
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.words cimport is_tombstone, placed, row_of, side_of, stamp_of

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
