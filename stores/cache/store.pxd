cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.base cimport Store, as_bytes
from limpet.stores.cache.hand cimport Hand
from limpet.stores.cache.ledger cimport Ledger
from limpet.stores.cache.objects cimport CacheObjects
from limpet.stores.cache.validity cimport Validity
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Holds, Index, Place
from limpet.stores.race.slots cimport Slots
from limpet.stores.race.splitter cimport Splitter

cdef int AGAIN
cdef int BATCH
cdef int DONE
cdef int EXISTS
cdef int FULL
cdef int INSERT
cdef int MISSING
cdef int NO_MEMORY
cdef int PUT
cdef int OVER
cdef int SWAP
cdef int FINISH
cdef int LANDED
cdef int MINE
cdef int OTHERS
cdef int FRESH
cdef int STALE
cdef int UNDECIDED
cdef int VOID

cdef u64 ADDRESS_MASK
cdef u64 BIRTH
cdef u64 BORN_MASK
cdef int BORN_SHIFT
cdef u64 COMPUTATIONS
cdef u64 COUNTER_SIZE
cdef u64 COUNTERS
cdef u64 DEAD
cdef u64 DEADLINE
cdef u64 DELETES
cdef u64 EVICTIONS
cdef u64 EXPIRATIONS
cdef u64 FLIGHT
cdef u64 GIVE_UP
cdef u64 HITS
cdef u64 HITS_MASK
cdef u64 HITS_MAX
cdef u64 HOPELESS
cdef int ITEMS_SHIFT
cdef int LAP_SHIFT
cdef u64 LIFE
cdef u64 MISSES
cdef u64 PENDING
cdef u64 SETS
cdef u64 SLIDES
cdef u64 SPLIT_MISSES
cdef u64 TAGGED
cdef u64 TAGS
cdef u64 TIMES
cdef u64 UNIT
cdef u64 UNITS_MASK
cdef u64 US_PER_MS

cdef class Terms:
    cdef readonly u64 span
    cdef public u64 slide
    cdef public u64 stale
    cdef public u64 tags
    cdef public bint born_now
    cdef public u64 birth
    cdef public u64 checksum
    cdef public bint keep
    cdef public bint pending

    cdef u64 deadline(self, u64 now) noexcept

cdef class CacheStore(HashStore):
    cdef readonly CacheObjects cached
    cdef readonly bint counts_hits
    cdef readonly Ledger ledger
    cdef readonly Validity validity
    cdef readonly Hand hand
    cdef readonly Terms usual
    cdef u64 counter
    cdef u64 counted

    cpdef int hold_ledger(self, Ledger ledger) except -1
    cpdef int count(self, u64 what, u64 number) except -1
    cdef int _find_counter(self) except -1
    cdef object search_once(self, Place place, bytes key)
    @cython.locals(head=u64, life=u64)
    cdef object read_entry(self, bint found)
    cpdef int meet(self, u64 head, u64 life) except -1
    cpdef int state(self, u64 head) except -1
    @cython.locals(row=int, key=bytes, index=Index)
    cdef bint search_batch(self, Place place, list keys, list found) except -1
    @cython.locals(head=u64)
    cpdef object entry_once(self, Place place, bytes key)
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(place=Place, size=u64, attempt=u64, misses=u64, outcome=int)
    cpdef int write(self, key, value, int mode, Terms terms) except -1
    @cython.locals(
        index=Index, objects=CacheObjects, slot=u64, head=u64, spare=u64, outcome=int, units=u64,
        lap=u64, reference=u64, desired=u64,
    )
    cpdef int write_entry(
        self, Place place, bytes key, bytes value, u64 size, int mode, u64 attempt, Terms terms
    ) except -1
    @cython.locals(state=int, counts=bint)
    cdef int _refused(self, u64 head, int mode, Terms terms) except -1
    @cython.locals(endpoint=Endpoint, now=u64, born=u64, life=u64)
    cdef int _head(self, Terms terms, u64 lap, u64 head) except -1
    @cython.locals(slot=u64, counts=bint, outcome=int)
    cdef int delete_once(self, Place place, bytes key) except -1
    @cython.locals(head=u64, units=u64, outcome=int)
    cdef int unlink(self, Place place, u64 slot) except -1
    @cython.locals(endpoint=Endpoint, head=u64, deadline=u64, stale=u64, life=u64)
    cpdef bint touch_once(self, Place place, bytes key, Terms terms) except -1
    @cython.locals(slot=u64, outcome=int)
    cpdef tuple take_once(self, Place place, bytes key)
    @cython.locals(slot=u64)
    cpdef bint purge_once(self, Place place, bytes key) except -1
    @cython.locals(in_vain=u64, enough=bint, hopeless=bint, freed=u64, scope=bint)
    cpdef int make_room(self, u64 units) except -1
    cpdef u64 evict_once(self, u64 units, bint ruthless, bint ends) except? 0xFEEDFACEDEADBEA7
    cdef int _count_evicted(self) except -1
    cpdef int evict_near(self, Place place, bytes key) except -1
    @cython.locals(endpoint=Endpoint, head=u64, state=int, birth=u64, pilot=u64, found=u64)
    cpdef object board(self, Place place, bytes key, u64 dead)
    @cython.locals(slot=u64, head=u64, pending=u64)
    cpdef bint alight(self, Place place, bytes key) except -1
