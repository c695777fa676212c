cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.status cimport *
from limpet.stores.fusee.index cimport ReplicatedIndex
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.slots cimport ReplicatedSlots
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Place
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.key_register cimport KeyRegister, NewRegister
from limpet.stores.swarm.layout cimport DELETED
from limpet.stores.swarm.row cimport Row
from limpet.stores.swarm.unmapping cimport Unmapping

@cython.final
cdef class WriteSteps:
    cdef readonly Finder finder
    cdef readonly NewRegister made
    cdef readonly ReplicatedSlots writer
    cdef readonly Unmapping unmapping
    cdef readonly ReplicatedTables tables
    cdef readonly ReplicatedIndex index
    cdef readonly KeyRegister register
    cdef readonly LocationCache cache
    cdef readonly Endpoint endpoint
    cdef readonly Client client

    @cython.locals(outcome=int, slot=u64)
    cdef int write(
        self, Place place, bytes key, bytes value, long long at, int mode, u64 attempt
    ) except -1
    @cython.locals(row=Row, outcome=int)
    cdef int _write_to(self, bytes value, int mode, long long at) except -1
    @cython.locals(outcome=int, ticket=u64)
    cdef int _write_found(self, Place place, bytes key, bytes value, int mode, u64 slot) except -1
    @cython.locals(made=NewRegister, desired=u64, outcome=int, at='long long')
    cdef int _insert_new(self, Place place, bytes key, bytes value, u64 attempt) except -1
