cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.entry_log cimport Entry, EntryLog
from limpet.stores.rtx.changes cimport begin_change, end_change
from limpet.stores.rtx.lllock cimport LLLocks, slot_at

cdef u64 ABORT
cdef u64 COMMITTED
cdef u64 DOING
cdef u64 DONE
cdef u64 INIT
cdef u64 LEASE
cdef u64 ROUND
cdef u64 STATE
cdef u64 STATE_MASK
cdef u64 TIME_MASK
cdef u64 TX_LOG
cdef u64 TX_TIME

cdef class Log(EntryLog):
    cdef readonly LLLocks locks
    cdef readonly u64 lock_state
    cdef readonly bint decided

    cpdef int be(self, LLLocks locks, u64 reference) except -1
    cpdef int begin(self, u64 state, u64 link) except -1
    cpdef int note_new(self, Entry entry) except -1
    @cython.locals(slot=u64)
    cpdef int publish(self, u64 state, u64 objects) except -1
    cpdef bint decide(self) except -1
    cpdef bint commits(self) except -1
    cpdef bint is_expired(self) except -1
    @cython.locals(word=u64)
    cpdef bint take_over(self) except -1
    @cython.locals(word=u64)
    cpdef int finish(self, bint committed) except -1
    @cython.locals(state=u64)
    cpdef int hide(self) except -1

@cython.locals(made=Log)
cpdef Log log_at(LLLocks locks, u64 reference)
