cimport cython

from limpet.shm.endpoint.verbs cimport u64, words_bytes
from limpet.stores.swarm.buffers cimport Buffer
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport MaxRegister
from limpet.stores.swarm.protocol cimport Protocol
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.recycling cimport Recycling
from limpet.stores.swarm.register cimport Register
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.tombstone cimport Tombstone
from limpet.stores.swarm.words cimport row_of, side_of

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

    cpdef int select(self, u64 reference, u64 area, u64 ident, u64 capacity, int first) except -1
    @cython.locals(
        place=Register, buffer=Buffer, words=u64[::1], fits=bint, group=int, pointers=int,
        pointer=int, in_place=int, stored=bytes, rest=u64,
    )
    cpdef bytes begin(self, u64 word, u64 reference, bytes value)
