cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.status cimport VACANT_CLASS
from limpet.stores.fusee.growth cimport ReplicatedSplitter
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.snapshot cimport ReplicatedSlot
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Place
from limpet.stores.race.layout cimport *
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Register
from limpet.stores.swarm.replica cimport Replica

@cython.final
cdef class Recycling:
    cdef Client client
    cdef Endpoint endpoint
    cdef Heap heap
    cdef readonly Quorum quorum
    cdef readonly Register register

    @cython.locals(count=int, k=int, address=u64, sizes=u64)
    cpdef bint visit(self, u64 reference) except -1
    cpdef bint visit_home(self, u64 link_address) except -1
    @cython.locals(held=int, linked=bint)
    cpdef bint names(self, u64 reference, u64 link_address) except -1
    cdef bint _is_named(self, u64 reference, u64 link_address) except -1
    @cython.locals(replica=Replica, row=int, side=int)
    cdef bint _is_linked(self, u64 reference) except -1
    @cython.locals(replica=Replica, ident=u64, buffer=u64)
    cpdef int dispose(self, u64 reference) except -1
    @cython.locals(replica=Replica, at=int, word=u64, reference=u64, last=u64)
    cpdef set buffers_named(self)

@cython.final
cdef class Unmapping:
    cdef ReplicatedTables tables
    cdef ReplicatedSplitter splitter
    cdef Client client
    cdef Endpoint endpoint
    cdef Recycling recycling
    cdef ReplicatedSlot slot

    @cython.locals(word=u64, reference=u64, held=int, won=bint, pointer=u64, offset=u64, address=u64)
    cdef bint unmap(self, Place place, u64 slot, u64 ticket) except -1
    @cython.locals(at=u64, winner=u64)
    cdef bint _vacate_alone(self, u64 word, u64 ticket) except -1
