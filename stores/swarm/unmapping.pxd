cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.fusee.growth cimport ReplicatedSplitter
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.marks cimport *
from limpet.stores.fusee.snapshot cimport ReplicatedSlot
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Place
from limpet.stores.race.layout cimport *
from limpet.stores.swarm.recycling cimport Recycling

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
