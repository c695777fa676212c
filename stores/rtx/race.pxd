from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, is_split
from limpet.stores.rtx.hash_slots cimport TransactionHolds, TransactionSlots
from limpet.stores.rtx.lllock cimport LLLocks

cdef u64 LOCKED
cdef u64 REPLICATED
cdef u64 SLOT
cdef u64 SLOT_MASK
cdef int SLOT_SHIFT
cdef u64 START_US
cdef u64 TIME_MASK

cdef class RtxRace(HashStore):
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly TransactionHolds holds
    cdef readonly TransactionSlots writer
    cdef readonly object tx_keys

    cpdef u64 busy_slot(self, u64 slot) noexcept
    cpdef int give_way(self, u64 busy, u64 table, u64 attempt) except -1
