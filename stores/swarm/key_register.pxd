cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.verbs cimport u64, words_bytes
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport MaxRegister, Protocol
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Register, Registers, area_of, first_of
from limpet.stores.swarm.replica cimport Buffer
from limpet.stores.swarm.row cimport Row, Turns, Wanted
from limpet.stores.swarm.unmapping cimport Recycling
from limpet.stores.swarm.words cimport is_tombstone, row_of, side_of, tuple_word

@cython.final
cdef class Tombstone:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row
    cdef Buffer buffer

    @cython.locals(quorum=Quorum, row=Row, writer=int, outcome=int, word=u64, wrote=int)
    cpdef int write(self, u64 ticket) except -1

@cython.final
cdef class KeyRegister:
    cdef readonly Register place
    cdef readonly Quorum quorum
    cdef readonly Row row
    cdef readonly MaxRegister max_register
    cdef readonly Protocol protocol
    cdef readonly Tombstone tombstone
    cdef readonly Recycling recycling
    cdef u64[::1] words
    cdef u64[::1] pointers

    cpdef int select(
        self, u64 reference, u64 area, u64 ident, u64 capacity, u64 length, int first
    ) except -1
    cpdef int open(self, Registers logged, u64 reference) except -1
    @cython.locals(
        place=Register, buffer=Buffer, words=u64[::1], fits=bint, group=int, pointer=int,
        stored=bytes, front=bytes, pointers=bytes,
    )
    cpdef bytes begin(self, u64 word, u64 reference, bytes value)

@cython.final
cdef class NewRegister:
    cdef readonly Allocator allocator
    cdef readonly ReplicatedTables tables
    cdef readonly Registers logged
    cdef readonly KeyRegister register
    cdef readonly u64 replicas
    cdef public u64 reference
    cdef readonly u64 word

    @cython.locals(
        register=KeyRegister, writer=int, capacity=u64, size=u64, reference=u64, buffer=u64,
        area=u64, ident=u64, word=u64, wanted=Wanted
    )
    cdef bint make(self, u64 node, bytes key, bytes value) except -1
