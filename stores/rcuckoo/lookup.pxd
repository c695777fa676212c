cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.base cimport as_bytes
from limpet.stores.inline cimport InlineStore
from limpet.stores.rcuckoo.dependent_hash cimport DependentHash
from limpet.stores.rcuckoo.journal cimport Journal
from limpet.stores.rcuckoo.locks cimport Locks
from limpet.stores.rcuckoo.rows cimport Rows

cdef int NODE_SHIFT
cdef u64 REFERENCE_MASK
cdef u64 REPLICATED
cdef u64 INLINE
cdef u64 PATIENCE
cdef u64 CLIENTS_PER_ATTEMPT
cdef u64 SLOTS_USED
cdef int SPARE
cdef int LOOKS_MAX

cdef int AGAIN
cdef int BATCH
cdef int DONE
cdef int MISSING

cdef class Lookup(InlineStore):
    cdef u64 link
    cdef readonly u64[::1] tables
    cdef readonly u64 journal_size
    cdef readonly u64 locks_at
    cdef readonly u64 rows_at
    cdef readonly u64 row_count
    cdef readonly DependentHash places
    cdef readonly Rows rows
    cdef readonly Journal journal
    cdef readonly Locks locks
    cdef u64 hash
    cdef public u64 table
    cdef readonly u64 first
    cdef readonly u64 second
    cdef u64 at_first
    cdef u64 at_second
    cdef u64 place
    cdef int slot
    cdef readonly u64 patience

    cdef int _choose(self, bytes key) except -1
    cdef u64 _table_of(self, u64 hashed) noexcept
    cpdef int node_of(self, bytes key) except -1
    cpdef int enter_table(self, u64 base) except -1
    @cython.locals(rows=Rows)
    cdef int _read_pair(self) except -1
    @cython.locals(fingerprint=u64)
    cdef bint _find(self, bytes key) except -1
    @cython.locals(rows=Rows)
    cdef int _get_once(self, bytes key) except -1
    @cython.locals(rows=Rows, place=u64, first=u64, second=u64)
    cdef bint _are_settled(self) except -1
    @cython.locals(place=int, row=u64)
    cpdef bint is_damaged(self) except -1
    @cython.locals(rows=Rows, locks=Locks)
    cpdef bint is_torn(self, u64 row) except -1
    cpdef copies_of(self, bytes key)
    @cython.locals(found=bint)
    cpdef header_of(self, bytes key)
    @cython.locals(header=u64)
    cdef bytes _value(self)
    cdef bytes _value_at(self, u64 header)
    @cython.locals(again=bint, size=u64, key=bytes, value=bytes, header=u64)
    cpdef list _get_batch(self, list keys, list found)
    @cython.locals(turn=u64)
    cdef int _stay(self, u64 attempt) except -1
    @cython.locals(attempt=int)
    cdef int _refuse_stray(self) except -1
    @cython.locals(used=u64)
    cdef int _take_patience(self) except -1
    @cython.locals(word=u64, bits=u64)
    cpdef int look_after(self) except -1
