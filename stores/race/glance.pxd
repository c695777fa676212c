cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, hash64, lowest_bit, u64
from limpet.stores.race.index cimport Index, Place, is_valid
from limpet.stores.stamped cimport StampedObjects

cdef u64 ADDRESS_MASK
cdef u64 DROPS
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 OBJECT_MASK
cdef u64 SLOTS

cdef class Glance:
    cdef readonly Index index
    cdef readonly StampedObjects objects
    cdef readonly Endpoint endpoint

    @cython.locals(
        index=Index, endpoint=Endpoint, left=u64, at=int, word=u64, slot=u64, stamp_at=u64,
        stamp=u64, entry=u64, pointer=u64, more=bint, hashed=u64,
    )
    cdef object value(self, Place place, bytes key, u64 drops)
