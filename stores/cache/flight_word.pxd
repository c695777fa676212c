cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.cache.entries cimport Entries
from limpet.stores.cache.objects cimport CacheObjects
from limpet.stores.race.index cimport Place

cdef int DONE
cdef int FRESH
cdef int LANDED
cdef int MINE
cdef int OTHERS
cdef int STALE
cdef int UNDECIDED

cdef u64 FLIGHT
cdef u64 LIFE
cdef u64 PENDING

@cython.final
cdef class FlightWord:
    cdef readonly Entries entries
    cdef readonly Endpoint endpoint
    cdef readonly Client client

    @cython.locals(
        entries=Entries, objects=CacheObjects, head=u64, state=int, birth=u64, pilot=u64, found=u64
    )
    cdef object board(self, Place place, bytes key, u64 dead)
    @cython.locals(entries=Entries, head=u64)
    cdef u64 pilot(self, Place place, bytes key) except? 0
    @cython.locals(entries=Entries, slot=u64, head=u64, pending=u64)
    cdef bint alight(self, Place place, bytes key) except -1
