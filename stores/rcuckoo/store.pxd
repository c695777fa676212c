cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rcuckoo.journal cimport Journal
from limpet.stores.rcuckoo.locks cimport Locks
from limpet.stores.rcuckoo.lookup cimport Lookup
from limpet.stores.rcuckoo.rows cimport Rows
from limpet.stores.rcuckoo.search cimport PathSearch

cdef int INCARNATION_BITS
cdef int NODE_SHIFT
cdef u64 REFERENCE_MASK
cdef u64 MASK
cdef u64 INLINE
cdef int JOURNALS
cdef u64 JOURNAL
cdef int PLANS_MAX
cdef int LOST_MAX
cdef int FOUND
cdef int LACKING

cdef int INSERT
cdef int UPDATE
cdef int DELETE
cdef int DONE
cdef int AGAIN
cdef int NO_MEMORY
cdef int EXISTS
cdef int MISSING
cdef int FULL
cdef int LOST

cdef class Rcuckoo(Lookup):
    cdef u64 rows_per_lock
    cdef readonly list searches
    cdef readonly int planned
    cdef u64[::1] plan_rows
    cdef u64 plan_hash

    @cython.locals(attempt=u64, lost=int, tried=bint, outcome=int)
    cpdef int _change(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(reference=u64, outcome=int, held=int)
    cdef int _change_once(self, bytes key, bytes value, u64 size, int mode, bint again) except -1
    @cython.locals(base=u64, slot=u64)
    cdef int _open_journal(self) except -1
    @cython.locals(locks=Locks, index=int)
    cdef int _plan_locks(self) except -1
    @cython.locals(locks=Locks, outcome=int)
    cdef int _locked(self, bytes key, bytes value, u64 reference, int mode) except -1
    @cython.locals(rows=Rows, found=bint, index=u64, header=u64)
    cdef int _work(self, bytes key, bytes value, u64 reference, int mode) except -1
    cdef int _enter(self, u64 place, u64 slot, bytes key, bytes value, u64 reference) except -1
    @cython.locals(rows=Rows, row=u64, version=u64)
    cdef int _commit_one(self, bytes key, bytes value, u64 reference, int mode) except -1
    @cython.locals(rows=Rows, search=PathSearch, journal=Journal, length=int, step=int, row=u64, slot=u64, at=u64, before=u64)
    cdef int _commit_path(self, bytes key, bytes value, u64 reference) except -1
    @cython.locals(search=PathSearch, index=int, row=u64, begin=u64, count=u64, held=u64, offset=u64, at=u64)
    cdef int _learn_locked(self) except -1
    @cython.locals(search=PathSearch)
    cpdef PathSearch search(self)
    cdef u64 _locked_row(self, int index) noexcept
    @cython.locals(search=PathSearch, outcome=int, step=int)
    cdef bint _plan(self) except -1
    @cython.locals(search=PathSearch, index=int, row=u64)
    cdef int _learn_unknown(self) except -1
