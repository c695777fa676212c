cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.cache.counters cimport Counters
from limpet.stores.cache.layout cimport *
from limpet.stores.cache.ledger cimport Ledger
from limpet.stores.cache.objects cimport CacheObjects
from limpet.stores.cache.status cimport *
from limpet.stores.cache.terms cimport Terms
from limpet.stores.cache.validity cimport Validity
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.slots cimport Slots
from limpet.stores.status cimport *

@cython.final
cdef class Entries:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly Index index
    cdef readonly Slots slots
    cdef readonly CacheObjects objects
    cdef readonly Validity validity
    cdef readonly Ledger ledger
    cdef readonly Counters counters
    cdef readonly bint counts_hits

    cpdef int state(self, u64 head) except -1
    @cython.locals(head=u64, life=u64)
    cdef object read(self, bint found)
    cpdef int meet(self, u64 head, u64 life) except -1
    @cython.locals(head=u64, deadline=u64, times=u64)
    cdef object inspect(self, Place place, bytes key)
    @cython.locals(state=int, counts=bint, flight=u64, ours=bint)
    cdef int refusal(self, u64 head, int mode, Terms terms) except -1
    @cython.locals(endpoint=Endpoint, now=u64, born=u64, life=u64)
    cdef int head_next(self, Terms terms, u64 lap, u64 head) except -1
    @cython.locals(endpoint=Endpoint, head=u64, deadline=u64, stale=u64, life=u64)
    cdef bint touch(self, Place place, bytes key, Terms terms) except -1
    @cython.locals(head=u64, units=u64, outcome=int)
    cdef int unlink(self, Place place, u64 slot) except -1
    @cython.locals(slot=u64, counts=bint, outcome=int)
    cdef int delete(self, Place place, bytes key) except -1
    @cython.locals(slot=u64, outcome=int)
    cdef int delete_as(self, Place place, bytes key, u64 checksum) except -1
    @cython.locals(slot=u64, counts=bint, outcome=int)
    cdef tuple take(self, Place place, bytes key)
    @cython.locals(slot=u64)
    cdef bint purge(self, Place place, bytes key) except -1
