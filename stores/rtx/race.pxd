cimport cython

from limpet.shm.endpoint.slots cimport START_US
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.status cimport *
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, Place, is_split, is_valid
from limpet.stores.race.layout cimport DIRECTORY_ENTRY, UNSET
from limpet.stores.race.splitter cimport Splitter
from limpet.stores.transactions.commit cimport Commit
from limpet.stores.transactions.hash_keys cimport HashKeys, TransactionHolds, TransactionSlots
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.reads cimport KeyRead, Reads, Staging
from limpet.stores.transactions.slot_writes cimport SlotWrite

cdef class SlotWriteSet(Staging):
    cdef readonly HashKeys keys
    cdef readonly Commit commit

    @cython.locals(
        keys=HashKeys, commit=Commit, reads=Reads, read=KeyRead, slot=u64, word=u64, found=bytes,
    )
    cpdef int stage(self, bytes key, bytes value) except -1
    @cython.locals(write=SlotWrite)
    cdef int _write(
        self, u64 slot, u64 word, bytes key, bytes value, KeyRead read, bint inserts, u64 hashed
    ) except -1

cdef class TransactionSplitter(Splitter):
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly u64 link

    cpdef int wait(self, u64 busy, u64 table, u64 attempt) except -1
    @cython.locals(row=int, at=u64, version=u64, pointer=u64, read=u64[::1])
    cpdef int split(self, Place place) except -1
    @cython.locals(
        index=Index, table=int, number=u64, first=u64, second=u64, at=int, word=u64, depth=int,
        slot=u64, held=u64, attempt=u64,
    )
    cpdef int fill_halves(self, object parent, dict halves) except -1

cdef class RtxRace(HashStore):
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly TransactionHolds holds
    cdef readonly TransactionSlots writer
    cdef readonly object tx_keys

    cpdef u64 busy_slot(self, u64 slot) noexcept
    cpdef int back_off(self, u64 busy, u64 table, u64 attempt) except -1
