cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, checksum, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.cache.layout cimport *
from limpet.stores.cache.ledger cimport Counters, Ledger
from limpet.stores.cache.validity cimport Terms, Validity
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.slots cimport Slots

cdef u64 MASK

cdef class CacheObjects(Objects):
    cdef u64[::1] heading
    cdef readonly Validity validity
    cdef bint judged
    cdef u64 ticket

    @cython.locals(sizes=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cpdef int post_keyed(self, u64 reference, bytes key) except -1
    @cython.locals(found=bint)
    cpdef bint load_keyed(self, u64 reference, bytes key) except -1
    @cython.final
    cdef int state(self) except -1
    @cython.final
    cdef u64 at(self) noexcept
    @cython.final
    cdef u64 checksum(self) except? 0xFEEDFACEDEADBEA7
    @cython.final
    cdef u64 units_of(self, u64 sizes) noexcept
    @cython.final
    cdef u64 units(self) noexcept

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

    cpdef int state(self) except -1
    cdef object read(self, bint found)
    @cython.locals(life=u64)
    cdef int meet(self) except -1
    @cython.locals(validity=Validity, deadline=u64, times=u64, tags=u64)
    cdef object inspect(self, Place place, bytes key)
    @cython.locals(state=int, counts=bint, flight=u64, ours=bint)
    cdef int refusal(self, int mode, Terms terms) except -1
    @cython.locals(validity=Validity, now=u64, born=u64, life=u64)
    cdef int head_next(self, Terms terms, u64 lap, u64 birth, bint replaces) except -1
    @cython.locals(endpoint=Endpoint, head=u64, deadline=u64, stale=u64, ticket=u64)
    cdef bint touch(self, Place place, bytes key, Terms terms) except -1
    @cython.locals(head=u64, units=u64, outcome=int)
    cdef int unlink(self, Place place, u64 slot) except -1
    cdef int count(self, u64 what) except -1
    @cython.locals(slot=u64, counts=bint, outcome=int)
    cdef int delete(self, Place place, bytes key) except -1
    @cython.locals(slot=u64, outcome=int)
    cdef int delete_as(self, Place place, bytes key, u64 checksum) except -1
    @cython.locals(slot=u64, counts=bint, outcome=int)
    cdef tuple take(self, Place place, bytes key)
    @cython.locals(slot=u64)
    cdef bint purge(self, Place place, bytes key) except -1

@cython.final
cdef class FlightWord:
    cdef readonly Entries entries
    cdef readonly Endpoint endpoint
    cdef readonly Client client

    @cython.locals(number=u64)
    cdef u64 following(self) except? 0
    @cython.locals(
        entries=Entries, objects=CacheObjects, state=int, birth_ticket=u64, birth=u64, other=u64,
        flight=u64, found=u64, scope=bint,
    )
    cdef object board(self, Place place, bytes key, u64 dead, u64 early, Terms terms)
    cdef int _count_miss(self, Terms terms) except -1
    @cython.locals(ticket=u64)
    cdef u64 _changed(self, u64 expected, u64 flight) except? 0xFEEDFACEDEADBEA7
    @cython.locals(entries=Entries)
    cdef u64 find(self, Place place, bytes key) except? 0
    @cython.locals(validity=Validity, deadline=u64, took=u64)
    cdef bint _is_early(self, u64 early) except -1
    @cython.locals(entries=Entries, validity=Validity, slot=u64)
    cdef bint alight(self, Place place, bytes key, u64 flight) except -1
