cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.index cimport Index, Place, is_split, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.parameters cimport *

cdef object CLASS
cdef object CLASS_OF_FROZEN
cdef object UNSETTLED

cdef class Check:
    cdef readonly object pool
    cdef readonly Index index
    cdef readonly str name
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly Objects objects
    cdef readonly Place place

    @cython.locals(pointer=u64, entry=u64)
    cpdef object keys_at(self, u64 table, u64 number, int group)
    @cython.locals(index=int, word=u64)
    cpdef list keys_in(self, u64 group)
    @cython.locals(base=u64, word=u64)
    cdef bint _holds(self, u64 slot, bytes key) except -1

cdef class Mending:
    cdef readonly Index index
    cdef readonly Endpoint endpoint
    cdef readonly Objects objects
    cdef readonly dict large

    @cython.locals(pointer=u64, half=u64)
    cpdef int mend_below(self, u64 table, u64 number) except -1
    @cython.locals(half=int, entry=u64)
    cpdef int give_up_halves(self, u64 table, u64 number) except -1
    @cython.locals(word=u64)
    cpdef int mend_slots(self, u64 base) except -1
