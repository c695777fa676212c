cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport area_of, first_of
from limpet.stores.swarm.registers cimport Registers
from limpet.stores.swarm.row cimport Wanted
from limpet.stores.swarm.words cimport tuple_word

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
