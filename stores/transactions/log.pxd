cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.transactions.changes cimport begin_change, end_change
from limpet.stores.transactions.entry_log cimport EntryLog, LogEntry
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks, slot_at

cdef Py_ssize_t ENTRY
cdef Py_ssize_t HEADER

cdef class Log(EntryLog):
    cdef readonly LLLocks locks
    cdef readonly u64 lock_state
    cdef readonly u64 link
    cdef readonly bint decided
    cdef readonly bint is_there
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t written
    cdef readonly Py_ssize_t end
    cdef readonly bint in_journal
    cdef readonly bint late
    cdef readonly int left

    cpdef int attach(self, LLLocks locks, u64 reference) except -1
    @cython.locals(locks=LLLocks)
    cpdef int begin(self, u64 state, u64 link, bint in_journal, list entries) except -1
    @cython.locals(index=Py_ssize_t, place=Py_ssize_t, locks=LLLocks)
    cpdef int note(self, LogEntry entry) except -1
    @cython.locals(place=Py_ssize_t)
    cpdef Py_ssize_t place_of(self, u64 offset, Py_ssize_t count) except -1
    cpdef int note_late(self, LogEntry entry) except -1
    cpdef int named_late(self) except -1
    @cython.locals(locks=LLLocks, more=Py_ssize_t, at=u64)
    cdef int _write_noted(self) except -1
    @cython.locals(locks=LLLocks, count=Py_ssize_t, lease=u64)
    cpdef int write_down(self, u64 objects) except -1
    cdef int _write_word(self, u64 offset, u64 value) except -1
    cpdef int name(self) except -1
    cpdef int use(self, u64 reference) except -1
    cpdef int use_left(self) except -1
    cpdef int give_up(self) except -1
    @cython.locals(slot=u64)
    cpdef int publish(self, u64 state, u64 objects) except -1
    @cython.locals(endpoint=Endpoint, ticket=u64)
    cpdef bint decide(self) except -1
    cpdef int abort(self) except -1
    cpdef int free(self, u64 reference) except -1
    cpdef int free_left(self) except -1
    cpdef int close(self) except -1
    cpdef bint commits(self) except -1
    cpdef bint is_expired(self) except -1
    @cython.locals(word=u64)
    cpdef bint take_over(self) except -1
    @cython.locals(word=u64, over=u64, seen=u64)
    cpdef int finish(self, bint committed) except -1
    @cython.locals(state=u64)
    cpdef int hide(self) except -1
