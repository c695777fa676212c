cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, lowest_bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.race.index cimport Index, Place, is_valid
from limpet.stores.race.layout cimport *

cdef u64 LEAST
cdef object UNPROVEN

cdef class Glance:
    cdef readonly Index index
    cdef readonly Objects objects
    cdef readonly Endpoint endpoint

    cdef object value(self, Place place, bytes key, u64 drops)
    @cython.locals(index=Index, left=u64, at=int, word=u64, slot=u64, entry=u64, pointer=u64)
    cdef object search(self, Place place, bytes key, u64 drops)
    @cython.locals(reference=u64, stamp_at=u64, stamp=u64, more=bint)
    cdef object value_in(self, Place place, u64 slot, u64 word, bytes key, u64 drops)
    cdef int note_found(self, Place place, u64 slot) except -1
    cdef bint proves(
        self, Place place, u64 slot, u64 word, u64 stamp_at, u64 stamp, u64 drops
    ) except -1
