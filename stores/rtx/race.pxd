from limpet.shm.endpoint.slots cimport START_US
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, is_split
from limpet.stores.rtx.hash_slots cimport TransactionHolds, TransactionSlots
from limpet.stores.rtx.layout cimport *
from limpet.stores.rtx.lllock cimport LLLocks

cdef class RtxRace(HashStore):
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly TransactionHolds holds
    cdef readonly TransactionSlots writer
    cdef readonly object tx_keys

    cpdef u64 busy_slot(self, u64 slot) noexcept
    cpdef int give_way(self, u64 busy, u64 table, u64 attempt) except -1
