cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport INCARNATION_BITS
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.shm.parameters cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.status cimport *
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, Place, is_frozen, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.slots cimport Slots
from limpet.stores.race.splitter cimport Splitter
from limpet.stores.transactions.layout cimport DOING

cdef u64 STOPPED

cdef class DtxRace(HashStore):
    cdef readonly u64 link
    cdef readonly object locks
    cdef readonly object recovery
    cdef readonly u64 stop_offset

    cdef object search_once(self, Place place, bytes key)
    @cython.locals(key=bytes, stopped=bint)
    cdef bint search_batch(self, Place place, list keys, list found) except -1
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(scope=bint)
    cdef bint is_stopped(self, Place place, u64 table) except -1
    cpdef int back_off(self, u64 busy, u64 table, u64 attempt) except -1
    cdef int await_holder(self, u64 at, u64 table, u64 attempt) except -1

cdef class LoggedSplitter(Splitter):
    cdef readonly DtxRace store

    cpdef int wait(self, u64 busy, u64 table, u64 attempt) except -1
    cpdef int split(self, Place place) except -1
    @cython.locals(words=list, depth=int, index=int, word=u64, half=int)
    cpdef list halves_of(self, list numbers)
