cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport INCARNATION_BITS
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.status cimport *
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.locks cimport LockJournal, Locks
from limpet.stores.rcuckoo.lookup cimport KeyRows, Lookup
from limpet.stores.rcuckoo.repair cimport JOURNAL
from limpet.stores.rcuckoo.rows cimport Entry, LockedRows, Row, Rows
from limpet.stores.rcuckoo.search cimport PathSearch

cdef u64 MASK
cdef u64 TRIES
cdef u64 WRITTEN
cdef int PLANS_MAX

cdef class Plan(Attempt):
    cdef public bint is_sought
    cdef readonly int length
    cdef readonly u64[::1] rows
    cdef public int lost
    cdef public int full

@cython.final
cdef class Writer:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly Allocator allocator
    cdef readonly Lookup lookup
    cdef readonly Rows rows
    cdef readonly Locks locks
    cdef readonly LockJournal journal
    cdef readonly object parameters
    cdef u64 rows_per_lock
    cdef u64 link
    cdef readonly list searches
    cdef readonly LockedRows locked
    cdef Entry entry
    cdef Entry moved
    cdef u64[::1] adopted

    @cython.locals(search=PathSearch)
    cpdef PathSearch search(self, u64 table)
    @cython.locals(reference=u64, outcome=int, node=u64)
    cpdef int change(self, KeyRows found, bytes key, bytes value, u64 size, int mode, u64 attempt, Plan plan, bytes expected=*) except -1
    @cython.locals(held=int)
    cdef int _settle_hand(self, int outcome, u64 reference) except -1
    @cython.locals(search=PathSearch, outcome=int, step=int, _=int)
    cdef bint _search_speculatively(self, KeyRows found, Plan plan) except -1
    @cython.locals(search=PathSearch, plan=Plan)
    cdef Plan _guess_path(self, KeyRows found)
    @cython.locals(step=int)
    cdef int _plan_path(self, Plan plan, PathSearch search) except -1
    @cython.locals(rows=Rows, index=int, row=u64, found=Row)
    cdef int _learn_unknown(self, PathSearch search) except -1
    @cython.locals(locks=Locks, index=int)
    cdef int _plan_locks(self, KeyRows found, Plan plan) except -1
    @cython.locals(base=u64, ident=u64)
    cdef int _open_journal(self, KeyRows found) except -1
    @cython.locals(locks=Locks, outcome=int, planned=bint)
    cdef int _change_locked(self, KeyRows found, bytes key, bytes value, u64 reference, int mode, Plan plan, bytes expected) except -1
    @cython.locals(search=PathSearch, row=Row, number=u64, run=int)
    cdef int _arrive(self, KeyRows found, bint planned) except -1
    @cython.locals(search=PathSearch, index=int)
    cdef int _hold_locked(self, KeyRows found, Plan plan) except -1
    @cython.locals(search=PathSearch, run=int)
    cdef int _post_locked(self, KeyRows found) except -1
    @cython.locals(begin=u64)
    cdef int _hold(self, PathSearch search, u64 row) except -1
    @cython.locals(rows=Rows, search=PathSearch, there=bint, whole=bint, old=u64)
    cdef int _execute(self, KeyRows found, bytes key, bytes value, u64 reference, int mode, Plan plan, bytes expected) except -1
    cdef int _refuse(self, KeyRows found) except -1
    cdef bint _find_vacant(self, KeyRows found) except -1
    @cython.locals(
        rows=Rows, journal=LockJournal, number=u64, row=Row, slot=u64, sequence=u64, entry=Entry
    )
    cdef int _write_entry(self, KeyRows found, bytes key, bytes value, u64 reference, int mode) except -1
    @cython.locals(search=PathSearch, other=u64)
    cdef int _note(self, KeyRows found, u64 number, u64 slot, int mode) except -1
    @cython.locals(run=int)
    cdef Row _locked_row(self, PathSearch search, u64 number)
    @cython.locals(
        rows=Rows, journal=LockJournal, length=int, step=int, number=u64, row=Row, entry=Entry,
        sequence=u64, other=u64,
    )
    cdef int _write_path(self, KeyRows found, PathSearch search, bytes key, bytes value, u64 reference) except -1
