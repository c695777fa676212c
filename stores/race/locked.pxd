cimport cython

from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.status cimport *
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.splitter cimport Splitter

cdef u64 DOUBTS_MAX

cdef class RaceLocks(HashStore):
    pass

cdef class LockedSplitter(Splitter):
    cdef readonly str kind
    cdef u64 holder
    cdef u64 pin
    cdef u64 doubts

    @cython.locals(lock=u64, holder=u64, outcome=int)
    cpdef int split(self, Place place) except -1
    cpdef int wait(self, u64 busy, u64 table, u64 attempt) except -1
