cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.rtx.lllock cimport LLLocks, is_vacant, slot_of

cdef u64 ABORT
cdef u64 ADDRESS_MASK
cdef u64 COMMITTED
cdef u64 COUNT
cdef u64 DOING
cdef u64 DONE
cdef u64 ENTRIES
cdef u64 ENTRY_SIZE
cdef u64 INIT
cdef u64 LARGE_CLASS
cdef u64 LEASE
cdef u64 OWNER
cdef u64 PART
cdef u64 REFERENCE_MASK
cdef u64 ROUND
cdef u64 STATE
cdef u64 STATE_MASK
cdef u64 TIME_MASK
cdef u64 TX_LOG
cdef u64 TX_TIME

cdef class Entry:
    cdef readonly u64 at
    cdef public u64 old
    cdef readonly u64 new

cdef class Log:
    cdef readonly object locks
    cdef readonly Endpoint endpoint
    cdef readonly u64 reference
    cdef readonly u64 at
    cdef readonly list noted
    cdef readonly list noted_parts

    cpdef int open(self, u64 state) except -1
    @cython.locals(endpoint=Endpoint, index=u64, at=u64)
    cpdef int note(self, Entry entry) except -1
    cpdef int note_part(self, part) except -1
    cpdef int amend(self, Entry entry, u64 index, u64 old) except -1
    @cython.locals(slot=u64)
    cpdef int publish(self, u64 state, u64 objects) except -1
    cpdef bint begin(self) except -1
    cpdef u64 owner(self) except? 0xFEEDFACEDEADBEA7
    cpdef u64 state(self) except? 0xFEEDFACEDEADBEA7
    cpdef bint commits(self) except -1
    cpdef list entries(self)
    @cython.locals(endpoint=Endpoint)
    cdef Entry _entry(self, u64 at)
    cpdef list parts(self)
    cpdef list pairs(self, bint committed)
    @cython.locals(word=u64)
    cpdef bint take_over(self) except -1
    @cython.locals(state=u64, word=u64, commits=bint, entries=list, entry=Entry)
    cpdef bint finish(self) except -1
    @cython.final
    @cython.locals(word=u64, entry=Entry)
    cdef int _apply(self, list entries, u64 state, bint installs, bint commits) except -1
    @cython.locals(locks=LLLocks)
    cdef _install(self, Entry entry)
    @cython.locals(locks=LLLocks)
    cdef _release(self, Entry entry, u64 state)
    @cython.locals(state=u64, slot=u64, reference=u64)
    cpdef int give_back(self, heap, bint committed) except -1

@cython.locals(entry=Entry, pointer=u64)
cpdef int free_entries(heap, list entries, bint committed) except -1
