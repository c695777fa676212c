cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.race.index cimport Index, is_split, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.records cimport Objects
from limpet.stores.status cimport *

cdef object CLASS
cdef object CLASS_OF_FROZEN
cdef object UNSETTLED

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
