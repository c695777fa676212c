cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, Image, hash64, u64
from limpet.stores.core.inline cimport InlineIndex
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.locks cimport LockJournal, Locks
from limpet.stores.rcuckoo.rows cimport DependentHash, Row, Rows
from limpet.stores.rcuckoo.search cimport PathSearch

@cython.final
cdef class KeyRows:
    cdef readonly bint direct
    cdef readonly u64 hash
    cdef public u64 table
    cdef readonly u64 first
    cdef readonly u64 second
    cdef u64 first_at
    cdef u64 second_at
    cdef readonly Row one
    cdef readonly Row two
    cdef bint covered
    cdef bint again
    cdef Image first_image
    cdef Image second_image
    cdef readonly Row row
    cdef readonly int slot
    cdef bytes value
    cdef u64 reference
    cdef u64 first_ticket
    cdef u64 second_ticket

cdef class Lookup(InlineIndex):
    cdef readonly str name
    cdef readonly Endpoint endpoint
    cdef readonly Objects objects
    cdef readonly u64[::1] tables
    cdef readonly u64 journal_size
    cdef readonly u64 locks_at
    cdef readonly u64 rows_at
    cdef readonly u64 row_count
    cdef u64 row_size
    cdef readonly DependentHash places
    cdef readonly Rows rows
    cdef readonly bint direct
    cdef readonly bint again
    cdef readonly list searches
    cdef readonly LockJournal journal
    cdef readonly Locks locks
    cdef readonly KeyRows found
    cdef readonly list batch
    cdef readonly list extents

    @cython.locals(found=KeyRows, outcome=int)
    cpdef int find_once(self, bytes key, u64 attempt) except -1
    @cython.locals(found=KeyRows)
    cdef int glance(self, bytes key) except -1
    @cython.locals(found=KeyRows, missing=bint, one=bint, two=bint)
    cdef bint proves(self, Endpoint endpoint, u64 drops) except -1
    cdef bint is_object(self) except -1
    @cython.locals(found=KeyRows)
    cpdef bytes value_found(self)
    @cython.locals(
        at=KeyRows, key=bytes, value=bytes, index=Py_ssize_t, start=Py_ssize_t, extent=Objects,
        busy=list, later=list, outcome=int,
    )
    cpdef list get_batch(self, list keys, list found)
    @cython.final
    cdef Objects _extent(self, Py_ssize_t index)
    @cython.final
    @cython.locals(places=DependentHash, base=u64)
    cdef int choose(self, KeyRows found, bytes key) except -1
    @cython.final
    cdef u64 table_of(self, u64 hashed) noexcept
    cpdef int node_of(self, bytes key) except -1
    cpdef int enter_table(self, u64 base) except -1
    @cython.final
    cdef int prefetch(self, KeyRows found) except -1
    @cython.final
    cdef int post(self, KeyRows found) except -1
    @cython.final
    @cython.locals(low=u64)
    cdef int _post_copies(self, KeyRows found) except -1
    @cython.final
    @cython.locals(upper=Py_ssize_t, first=Py_ssize_t)
    cdef int arrive(self, KeyRows found) except -1
    @cython.final
    @cython.locals(search=PathSearch)
    cdef int remember(self, KeyRows found) except -1
    @cython.final
    cdef int post_proven(self, KeyRows found, bint again) except -1
    @cython.final
    cdef int _post_sequences(self, KeyRows found) except -1
    @cython.final
    @cython.locals(tag=u64)
    cdef bint find(self, KeyRows found, bytes key) except -1
    @cython.final
    cdef int take(self, KeyRows found) except -1
    @cython.final
    cdef u64 number(self, KeyRows found) noexcept
    @cython.final
    @cython.locals(there=bint)
    cdef int look_up(self, KeyRows found, bytes key) except -1
    @cython.final
    @cython.locals(one=bint, two=bint, proven=bint, torn=bint)
    cdef bint is_proven(self, KeyRows found, bint both) except -1
    @cython.final
    cdef bint _are_proven(self, KeyRows found) except -1
    @cython.final
    @cython.locals(first=u64, before=u64, second=u64, then=u64)
    cdef bint _stands(
        self, KeyRows found, bint one, bint two, u64 drops_at, u64 drops
    ) except -1
    @cython.final
    cdef bytes value(self, KeyRows found)
    @cython.locals(tag=u64, copies=int)
    cpdef copies_of(self, KeyRows found, bytes key)
    @cython.locals(reference=u64)
    cpdef link_of(self, KeyRows found, bytes key)
    cpdef bint is_damaged(self, KeyRows found) except -1
    @cython.locals(rows=Rows, locks=Locks, row=Row)
    cpdef bint is_torn(self, u64 number) except -1
    cpdef damaged(self, KeyRows found)
