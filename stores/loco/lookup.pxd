cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.base cimport as_bytes
from limpet.stores.inline cimport InlineStore
from limpet.stores.loco.data_array cimport DataArray
from limpet.stores.loco.journal cimport Journal
from limpet.stores.loco.key_locks cimport KeyLocks
from limpet.stores.loco.local_index cimport LocalIndex
from limpet.stores.channels.lock.ticket_lock cimport TicketLock

cdef u64 REFERENCE_MASK
cdef int PATIENCE
cdef u64 NEAR
cdef int LATE_MAX
cdef u64 WAITERS
cdef int TORN
cdef u64 PHASE_MASK
cdef u64 VACANT
cdef int BATCH
cdef int DONE
cdef int MISSING

cdef class Lookup(InlineStore):
    cdef readonly list tables
    cdef readonly u64 table_count
    cdef readonly u64 lock_count
    cdef readonly u64 locks_at
    cdef readonly u64 record_size
    cdef readonly u64 journal_at
    cdef readonly u64 entries_at
    cdef readonly Journal journal
    cdef readonly list indexes
    cdef readonly KeyLocks key_locks
    cdef readonly list locks
    cdef readonly LocalIndex index
    cdef readonly DataArray entries
    cdef u64[::1] batch
    cdef readonly u64 table
    cdef readonly u64 hash
    cdef readonly long long entry
    cdef public u64 repairs

    @cython.locals(linked=bint, row=int, key=bytes, outcome=int)
    cpdef list _get_batch(self, list keys, list found)
    @cython.locals(size=u64, row=int, key=bytes, entry='long long')
    cdef int _expect_keys(self, list keys) except -1
    cdef int _turn_to_row(self, int row) except -1
    cpdef int choose(self, bytes key) except -1
    cpdef u64 table_of(self, bytes key) except? 0
    cpdef int enter_table(self, u64 table) except -1
    @cython.locals(outcome=int)
    cdef int _get_once(self, bytes key) except -1
    @cython.locals(entries=DataArray)
    cdef int _look_up(self, bytes key) except -1
    cdef bytes _value(self)
    @cython.locals(link=u64)
    cdef bytes _value_here(self)
    @cython.locals(attempt=int, ready=bint, lock=TicketLock)
    cdef TicketLock enter_locked(self, bytes key)
    @cython.locals(held=bint, lock=TicketLock, journal=u64)
    cdef TicketLock _take_lock(self, bytes key)
    cdef TicketLock _enter_held(self, TicketLock lock, bytes key)
    cdef int leave_locked(self, TicketLock lock) except -1
    cpdef TicketLock lock(self, u64 table, u64 number)
    @cython.locals(base=u64)
    cpdef int enter_journal(self, u64 table, u64 number) except -1
    cdef bint _begin_change(self, int attempt) except -1
    @cython.locals(lane=bint, lock=TicketLock)
    cdef bint _mend_once(self, u64 table, u64 number, int attempt) except -1
    @cython.locals(link_address=u64, vacant=u64, number=u64, link=u64)
    cpdef int vacate(self, u64 entry, u64 state) except -1
