cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, Place, is_split, is_valid
from limpet.stores.race.splitter cimport Splitter
from limpet.stores.records cimport Objects
from limpet.stores.rtx.hash_slots cimport TransactionHolds, TransactionSlots
from limpet.stores.rtx.lllock cimport LLLocks

cdef u64 ADDRESS_MASK
cdef u64 DIRECTORY_ENTRY
cdef u64 FROZEN
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 UNSET
cdef u64 LOCKED
cdef u64 POINTER
cdef u64 REPLICATED
cdef u64 SLOT

cdef int AGAIN
cdef int DONE

cdef class RtxRace(HashStore):
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly TransactionHolds holds
    cdef readonly TransactionSlots writer
    cdef u64 slot
    cdef object value
    cdef readonly u64 cramped

    cpdef int give_way(self, u64 busy, u64 table, u64 attempt) except -1
    cpdef object look_up(self, bytes key)
    @cython.locals(place=Place)
    cpdef tuple witness(self)
    cpdef bint stands(self, tuple witness) except -1
    @cython.locals(place=Place, index=int)
    cpdef tuple place_for(self, bytes key, object taken)
    @cython.locals(node=u64, reference=u64)
    cpdef u64 pair_for(self, bytes key, object value, u64 old) except? 0
    cpdef bint is_alone(self, bytes key, u64 slot) except -1

cdef class TransactionSplitter(Splitter):
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly u64 link

    cpdef int wait(self, u64 busy, u64 table, u64 attempt) except -1
    @cython.locals(number=u64, at=u64, version=u64)
    cpdef int split(self, Place place) except -1
    cpdef bint is_current(self, Place place) except -1
    @cython.locals(
        index=Index, table=int, number=u64, first=u64, second=u64, at=int, word=u64, depth=int,
        slot=u64, held=u64, attempt=u64,
    )
    cpdef int fill_halves(self, object parent, dict halves) except -1
