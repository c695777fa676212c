cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.base cimport Store
from limpet.stores.cache.counters cimport Counters
from limpet.stores.cache.hand cimport Hand
from limpet.stores.cache.layout cimport *
from limpet.stores.cache.ledger cimport Ledger
from limpet.stores.race.index cimport Index, Place

cdef u64 GIVE_UP
cdef u64 HOPELESS

@cython.final
cdef class Room:
    cdef readonly object pool
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly Index index
    cdef readonly Ledger ledger
    cdef readonly Hand hand
    cdef readonly Counters counters

    @cython.locals(in_vain=u64, enough=bint, hopeless=bint, freed=u64, scope=bint)
    cpdef int within_bounds(self, Store store, u64 units) except -1
    cpdef u64 evict(self, u64 units, bint ruthless, bint ends) except? 0xFEEDFACEDEADBEA7
    cdef int _count_evicted(self) except -1
    cpdef u64 total(self) except? 0xFEEDFACEDEADBEA7
    cdef int in_buckets(self, Place place, bytes key) except -1
