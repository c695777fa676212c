cimport cython

from limpet.shm.verbs cimport hash64, u64
from limpet.stores.contract cimport Store, as_bytes
from limpet.stores.objects cimport Objects
from limpet.stores.rcuckoo.dependent_hash cimport DependentHash
from limpet.stores.rcuckoo.journal cimport Journal
from limpet.stores.rcuckoo.locks cimport Locks
from limpet.stores.rcuckoo.rows cimport Rows
from limpet.stores.rcuckoo.search cimport PathSearch

cdef int INCARNATION_BITS
cdef int NODE_SHIFT
cdef u64 REFERENCE_MASK
cdef u64 REPLICATED
cdef u64 MASK
cdef u64 INLINE
cdef int JOURNALS
cdef u64 JOURNAL
cdef int TRAILER_WORDS
cdef int PATIENCE
cdef int PLANS_MAX
cdef int FOUND
cdef int LACKING

cdef int PUT
cdef int INSERT
cdef int UPDATE
cdef int DELETE
cdef int DONE
cdef int AGAIN
cdef int BATCH
cdef int NO_MEMORY
cdef int EXISTS
cdef int MISSING
cdef int LOST

cdef class Rcuckoo(Store):
    cdef u64 link
    cdef readonly u64[::1] tables
    cdef readonly u64 journal_size
    cdef readonly u64 locks_at
    cdef readonly u64 rows_at
    cdef readonly u64 row_count
    cdef readonly u64 key_size
    cdef readonly u64 value_size
    cdef u64 rows_per_lock
    cdef readonly Objects objects
    cdef readonly DependentHash places
    cdef readonly Rows rows
    cdef readonly Journal journal
    cdef readonly Locks locks
    cdef readonly list searches
    cdef u64 hash
    cdef public u64 table
    cdef readonly u64 first
    cdef readonly u64 second
    cdef u64 at_first
    cdef u64 at_second
    cdef u64 place
    cdef int slot
    cdef readonly int planned
    cdef u64[::1] plan_rows

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
    @cython.locals(rows=Rows, place=u64, trailer=u64, first=u64, second=u64)
    cdef bint _are_settled(self) except -1
    cpdef copies_of(self, bytes key)
    @cython.locals(found=bint)
    cpdef header_of(self, bytes key)
    @cython.locals(header=u64)
    cdef bytes _value(self)
    cdef bytes _value_at(self, u64 header)
    @cython.locals(again=bint, size=u64, key=bytes, value=bytes, header=u64)
    cdef list _get_batch(self, list keys, list found)
    @cython.locals(size=u64)
    cdef int _write(self, key, value, int mode) except -1
    @cython.locals(attempt=u64, tried=bint, outcome=int)
    cdef int _change(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(reference=u64, outcome=int, held=int)
    cdef int _change_once(self, bytes key, bytes value, u64 size, int mode, bint again) except -1
    @cython.locals(base=u64, slot=u64)
    cdef int _open_journal(self) except -1
    @cython.locals(locks=Locks, index=int, outcome=int)
    cdef int _locked(self, bytes key, bytes value, u64 reference, int mode, bint again) except -1
    @cython.locals(rows=Rows, index=u64, header=u64)
    cdef int _work(self, bytes key, bytes value, u64 reference, int mode) except -1
    cdef int _damaged(self, u64 row) except -1
    cdef int _enter(self, u64 place, u64 slot, bytes key, bytes value, u64 reference) except -1
    @cython.locals(rows=Rows, row=u64, version=u64)
    cdef int _commit_one(self, bytes key, bytes value, u64 reference, int mode) except -1
    @cython.locals(rows=Rows, search=PathSearch, journal=Journal, length=int, step=int, row=u64, slot=u64, at=u64, before=u64)
    cdef int _commit_path(self, bytes key, bytes value, u64 reference) except -1
    @cython.locals(search=PathSearch, index=int, row=u64, begin=u64, count=u64, held=u64, offset=u64, at=u64)
    cdef int _learn_locked(self) except -1
    cdef u64 _locked_row(self, int index) noexcept
    @cython.locals(search=PathSearch, outcome=int, step=int)
    cdef bint _plan(self) except -1
    @cython.locals(search=PathSearch, index=int)
    cdef int _learn_unknown(self) except -1
    cdef int _stay(self, u64 attempt) except -1
    cpdef int look_after(self) except -1
