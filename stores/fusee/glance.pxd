cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.fusee.cache cimport IndexCache
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.glance cimport Glance
from limpet.stores.race.index cimport Place, is_valid

cdef object UNPROVEN

cdef class ReplicatedGlance(Glance):
    cdef readonly ReplicatedTables tables
    cdef readonly IndexCache cache

    @cython.locals(cache=IndexCache, at='long long', guess=u64, slot=u64, ticket=u64, word=u64, trusted=bint)
    cdef object _guess(self, Place place, bytes key, u64 drops)
    cdef object value(self, Place place, bytes key, u64 drops)
    @cython.locals(cache=IndexCache, at='long long')
    cdef int note_found(self, Place place, u64 slot) except -1
    cdef bint proves(
        self, Place place, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 drops
    ) except -1
