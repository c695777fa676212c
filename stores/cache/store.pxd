cimport cython

from limpet.shm.clients.holds cimport Holds as ClientHolds
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport VIEWED
from limpet.stores.cache.entries cimport CacheObjects, Entries, FlightWord
from limpet.stores.cache.layout cimport *
from limpet.stores.cache.ledger cimport Counters, Ledger
from limpet.stores.cache.room cimport Hand, Room
from limpet.stores.cache.validity cimport Terms, Validity
from limpet.stores.channels.waiting cimport Waiting
from limpet.stores.core.base cimport as_bytes
from limpet.stores.core.status cimport *
from limpet.stores.race.batch cimport BatchSearch
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Holds, Index, Place
from limpet.stores.race.layout cimport OBJECT_MASK
from limpet.stores.race.slots cimport Slots
from limpet.stores.race.splitter cimport Splitter

cdef u64 SPLIT_MISSES

cdef class CacheSlots(Slots):
    cdef public Ledger ledger

    cpdef bint goes_on(self, Place place, bytes key, u64 slot, u64 attempt) except -1

cdef class CacheStore(HashStore):
    cdef readonly CacheObjects cached
    cdef readonly CacheSlots cache_slots
    cdef readonly Ledger ledger
    cdef readonly Validity validity
    cdef readonly Counters counters
    cdef readonly Hand hand
    cdef readonly Room room
    cdef readonly Entries entries
    cdef readonly FlightWord flight
    cdef readonly Terms usual
    cdef readonly list landings
    cdef readonly object bounds

    cpdef int hold_ledger(self, Ledger ledger) except -1
    cdef object search_once(self, Place place, bytes key)
    @cython.locals(row=int, key=bytes, search=BatchSearch, at=Place, scope=bint)
    cdef bint search_batch(self, Place place, list keys, list found) except -1
    @cython.locals(slot=u64, ticket=u64, holds=ClientHolds)
    cpdef object hold_once(self, Place place, bytes key, owner)
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(most=u64)
    @cython.locals(scope=bint)
    cdef int _go_on_resizing(self) except -1
    cdef int _require_size(self, bytes key, u64 size) except -1
    @cython.locals(place=Place, size=u64, attempt=u64, misses=u64, outcome=int, evicted=bint)
    cpdef int write(self, key, value, int mode, Terms terms) except -1
    @cython.locals(
        index=Index, objects=CacheObjects, ledger=Ledger, slot=u64, head=u64, spare=u64,
        outcome=int, units=u64, lap=u64, reference=u64, desired=u64, lap_ticket=u64,
        birth_ticket=u64, scope=bint,
    )
    cpdef int write_entry(
        self, Place place, bytes key, bytes value, u64 size, int mode, u64 attempt, Terms terms,
        bint evicted,
    ) except -1
    cdef int delete_once(self, Place place, bytes key) except -1
