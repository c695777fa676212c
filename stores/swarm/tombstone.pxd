cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.buffers cimport Buffer
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport MaxRegister
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.words cimport is_tombstone, tuple_word

@cython.final
cdef class Tombstone:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row
    cdef Buffer buffer

    @cython.locals(quorum=Quorum, row=Row, writer=int, outcome=int, word=u64, wrote=int)
    cpdef int write(self, u64 ticket) except -1
