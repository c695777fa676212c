cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport DROPS, REMOTES
from limpet.shm.endpoint.states cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.index cimport Place
from limpet.stores.race.layout cimport DIRECTORY_ENTRY, OBJECT_MASK
from limpet.stores.race.store cimport Race

cdef class Directories:
    cdef readonly object pool
    cdef readonly Race race
    cdef readonly int count

    cdef u64 _number_at(self, u64 address)

cdef class RegionObjects(Objects):
    @cython.locals(sizes=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cpdef bint intact(self) except -1

cdef class RegionTable:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Race race
    cdef Place place

    cpdef u64 node_of(self, bytes key) except? 0
    cpdef u64 locate(self, bytes key) except? 0
    cpdef u64 reference(self) noexcept
    cdef u64 _find(self, bytes key) except? 0
    cdef u64 _value(self, bytes key) noexcept
    @cython.locals(slot=u64, value=u64, outcome=int)
    cpdef bint take_out(self, bytes key, bint unmarked) except -1
