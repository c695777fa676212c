cimport cython

from limpet.shm.clients.unique_ids cimport Clock
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Register
from limpet.stores.swarm.replica cimport Buffer, Replica
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.words cimport is_tombstone, placed
from limpet.stores.swarm.write_back cimport WriteBack

@cython.final
cdef class MaxRegister:
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
    @cython.locals(quorum=Quorum, done=int, pending=int, k=int, outcome=int, replica=Replica)
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
    @cython.locals(quorum=Quorum, row=Row, scope=bint)
    cdef int mend(self, u64 m, bytes value) except -1

@cython.final
cdef class Insistence:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row

    @cython.locals(quorum=Quorum, row=Row, attempt=u64, placed_word=u64)
    cdef int write(self, u64 word, int outcome) except -1
