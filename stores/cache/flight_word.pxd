cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.cache.entries cimport Entries
from limpet.stores.cache.layout cimport *
from limpet.stores.cache.objects cimport CacheObjects
from limpet.stores.cache.status cimport *
from limpet.stores.cache.terms cimport Terms
from limpet.stores.race.index cimport Place
from limpet.stores.status cimport *

@cython.final
cdef class FlightWord:
    cdef readonly Entries entries
    cdef readonly Endpoint endpoint
    cdef readonly Client client

    @cython.locals(number=u64)
    cdef u64 following(self) except? 0
    @cython.locals(
        entries=Entries, objects=CacheObjects, head=u64, state=int, birth=u64, other=u64, flight=u64,
        found=u64,
    )
    cdef object board(self, Place place, bytes key, u64 dead, u64 early, Terms terms)
    @cython.locals(entries=Entries, head=u64)
    cdef u64 find(self, Place place, bytes key) except? 0
    @cython.locals(endpoint=Endpoint, deadline=u64, took=u64)
    cdef bint _is_early(self, u64 head, u64 early) except -1
    @cython.locals(entries=Entries, slot=u64, head=u64, pending=u64)
    cdef bint alight(self, Place place, bytes key, u64 flight) except -1
