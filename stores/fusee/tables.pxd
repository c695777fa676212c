cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.clients.unique_ids cimport Tickets
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.states cimport EXCLUDED, FORMER, IN_SERVICE, RESTORING
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport vacant_word
from limpet.stores.fusee.links cimport *
from limpet.stores.race.index cimport Place, is_vacant
from limpet.stores.race.layout cimport *

cpdef u64 identity(u64 word) noexcept

@cython.final
cdef class ReplicatedTables:
    cdef readonly object pool
    cdef readonly str name
    cdef readonly object parameters
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly object view
    cdef readonly u64 number_of_store
    cdef readonly u64 subtables
    cdef readonly u64 replicas
    cdef readonly Tickets tickets
    cdef readonly u64[::1] primaries
    cdef readonly u64[::1] bases
    cdef readonly u64[::1] counts
    cdef readonly u64[::1] steps
    cdef readonly u64[::1] lives
    cdef u64 viewed
    cdef bint looked
    cdef bint glanced
    cdef readonly bint swapped
    cdef readonly bint announced
    cdef u64 directory_size

    cdef int select(self, Place place) noexcept
    cdef u64 backups_of(self, u64 head) noexcept
    cdef u64 base_of(self, u64 pointer) noexcept
    cpdef u64 primary(self, u64 address) noexcept
    cpdef int agree(self) except -1
    cpdef int renew(self) except -1
    cdef bint stands(self) except -1
    cpdef int agree_to_read(self) except -1
    cpdef int glance(self) except -1
    cpdef bint find_replicas(self) except -1
    cpdef bint outlive(self, int node) except -1
    @cython.locals(subtable=u64, k=u64)
    cpdef int announce_swaps(self) except -1
    cpdef u64 post_swaps(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(lost=bint)
    cpdef int saw_swaps(self, u64 ticket) except -1
    @cython.locals(subtable=u64)
    cdef u64 _asked(self) noexcept
    cdef u64 _swaps_at(self, u64 directory) noexcept
    @cython.locals(row=u64)
    cpdef u64 backup(self, u64 slot, u64 head, u64 k) noexcept
    cpdef u64 replica(self, u64 address, u64 k) noexcept
    @cython.locals(place=u64)
    cpdef u64 link_address(self, u64 slot, u64 head) noexcept
    @cython.locals(place=u64)
    cpdef u64 home_of_entry(self, u64 table, u64 entry) noexcept
    cpdef u64 ticket(self) except 0
    @cython.locals(row=u64, offset=u64, backups=int, last=u64, decided=u64, k=int, replica=u64, there=u64, was=u64)
    cpdef u64 advance(self, u64 place, u64 word, u64 desired) except? 0
