cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport MaxRegister
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.words cimport is_tombstone, placed

@cython.final
cdef class Insistence:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row

    @cython.locals(quorum=Quorum, row=Row, attempt=u64, placed_word=u64)
    cdef int write(self, u64 word, int outcome) except -1
