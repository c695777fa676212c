cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.slots cimport CLIENT_JOURNAL_SIZE
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK, REFERENCE_MASK
from limpet.stores.cache.entries cimport CacheObjects
from limpet.stores.cache.layout cimport *
from limpet.stores.cache.ledger cimport Counters, Ledger
from limpet.stores.cache.validity cimport Validity
from limpet.stores.core.base cimport Store
from limpet.stores.race.index cimport Index, Place, is_frozen, is_split, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.parameters cimport *

cdef u64 LAP_SHARE
cdef int ROOM
cdef int WINDOW
cdef u64 WINDOW_GROUPS
cdef u64 GIVE_UP
cdef u64 YIELD
cdef u64 HOPELESS

cdef class Hand:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly Index index
    cdef readonly CacheObjects objects
    cdef readonly Ledger ledger
    cdef readonly Validity validity
    cdef readonly bint counts_hits
    cdef u64[::1] row
    cdef u64[::1] window
    cdef int seen
    cdef u64 rounds
    cdef readonly int evicted
    cdef readonly int expired
    cdef readonly u64 aged_ms

    @cython.locals(
        index=Index, endpoint=Endpoint, at=u64, hand=u64, lap=u64, table=u64, prefix=u64, group=u64,
        depth=u64, number=u64, pointer=u64, freed=u64, last=u64, base=u64, width=u64, moved=u64,
        everything=u64,
    )
    cpdef u64 step(self, u64 want, bint ruthless, bint ends) except? 0xFEEDFACEDEADBEA7
    @cython.locals(
        freed=u64, index=int, word=u64, head=u64, life=u64, state=int, taken=u64, at=int
    )
    cdef u64 _scan_group(
        self, u64 group, u64 lap, bint ruthless, u64 everything
    ) except? 0xFEEDFACEDEADBEA7
    @cython.locals(freed=u64, found=bint, best=int, taken=u64)
    cdef u64 _choose(self, u64 want) except? 0xFEEDFACEDEADBEA7
    @cython.locals(now=u64, best=int, most=u64, number=int, life=u64, age=u64)
    cdef int _oldest(self) except -2
    @cython.locals(now=u64)
    cdef u64 _age(self, u64 life) except? 0xFEEDFACEDEADBEA7
    @cython.locals(number=int, life=u64, head=u64)
    cdef int _count_down(self) except -1
    @cython.locals(validity=Validity)
    cdef u64 _read_head(self, u64 head) except? 0xFEEDFACEDEADBEA7
    cdef u64 _units(self, u64 head) except? 0xFEEDFACEDEADBEA7
    @cython.locals(head=u64, units=u64)
    cdef u64 _unlink(self, u64 slot, u64 word) except? 0xFEEDFACEDEADBEA7
    @cython.locals(index=int, word=u64, head=u64, at=int)
    cpdef u64 evict_from(self, u64[::1] words, Place place) except? 0xFEEDFACEDEADBEA7

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
    cpdef int within_bounds(self, Store store, u64 more) except -1
    @cython.locals(ledger=Ledger, total=u64, most=u64, units=u64, items=u64)
    cdef u64 _excess(self, u64 more) except? 0xFEEDFACEDEADBEA7
    cpdef u64 evict(self, u64 units, bint ruthless, bint ends) except? 0xFEEDFACEDEADBEA7
    @cython.locals(scope=bint)
    cdef int _count_evicted(self) except -1
    cpdef u64 total(self) except? 0xFEEDFACEDEADBEA7
    cdef int in_buckets(self, Place place, bytes key) except -1
