cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.status cimport *
from limpet.stores.fusee.batch_rounds cimport BatchedSlots, ReplicatedPuts
from limpet.stores.fusee.cache cimport IndexCache
from limpet.stores.fusee.check cimport ReplicatedCheck
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Place, is_valid
from limpet.stores.race.layout cimport *

cdef class Fusee(HashStore):
    cdef readonly LoggedObjects logged
    cdef readonly ReplicatedTables tables
    cdef public BatchedSlots writer
    cdef readonly ReplicatedCheck replicated_check
    cdef readonly object restoring
    cdef readonly IndexCache cache

    cpdef object search_once(self, Place place, bytes key)
    cpdef hold_once(self, Place place, bytes key, owner)
    @cython.locals(slot=u64)
    cdef _search(self, Place place, bytes key)
    cpdef bint search_batch(self, Place place, list keys, list found) except -1
    @cython.locals(
        at='long long', slot=u64, guess=u64, ticket=u64, word=u64, trusted=bint
    )
    cdef u64 _guess(self, Place place, bytes key) except? 0
    @cython.locals(at='long long')
    cdef int _learn(self, Place place, u64 slot) except -1
    @cython.locals(place=Place, outcome=int)
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(
        at='long long', known=bint, updates=bint, reference=u64, desired=u64, slot=u64, outcome=int
    )
    cdef int _attempt(
        self, Place place, bytes key, bytes value, u64 size, int mode, u64 attempt, Attempt way
    ) except -1
    @cython.locals(slot=u64, old=u64, k=u64, replica=u64)
    cdef int _prefetch(self, Place place, long long at) except -1
    @cython.locals(place=Place, slot=u64, reference=u64, desired=u64, outcome=int)
    cpdef int _swap_once(
        self, bytes key, bytes expected, bytes value, u64 size, int mode
    ) except -1
    cdef u64 _find(self, Place place, bytes key) except? 0
    @cython.locals(slot=u64)
    cdef int delete_once(self, Place place, bytes key) except -1
