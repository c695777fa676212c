cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport REFERENCE_MASK
from limpet.stores.core.inline cimport InlineIndex
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.rcuckoo.layout cimport *
from limpet.stores.rcuckoo.locks cimport LockJournal, Locks
from limpet.stores.rcuckoo.rows cimport DependentHash, Rows

cdef int SPARE

cdef class KeyRows:
    cdef readonly u64 hash
    cdef public u64 table
    cdef readonly u64 first
    cdef readonly u64 second
    cdef readonly u64 at
    cdef u64 at_first
    cdef u64 at_second
    cdef u64 place
    cdef int slot
    cdef u64 ticket_first
    cdef u64 ticket_second

cdef class Lookup(InlineIndex):
    cdef readonly str name
    cdef readonly Endpoint endpoint
    cdef readonly Objects objects
    cdef readonly u64[::1] tables
    cdef readonly u64 journal_size
    cdef readonly u64 locks_at
    cdef readonly u64 rows_at
    cdef readonly u64 row_count
    cdef readonly DependentHash places
    cdef readonly Rows rows
    cdef readonly LockJournal journal
    cdef readonly Locks locks
    cdef readonly KeyRows found
    cdef readonly list batch
    cdef readonly list extents

    @cython.locals(found=KeyRows)
    cpdef int find_once(self, bytes key, u64 attempt) except -1
    @cython.locals(found=KeyRows, proven=bint)
    cdef int glance(self, bytes key) except -1
    cdef bint is_object(self) except -1
    cpdef bytes value_found(self)
    @cython.locals(
        at=KeyRows, key=bytes, value=bytes, index=Py_ssize_t, start=Py_ssize_t, extent=Objects,
        busy=list, later=list,
    )
    cpdef list get_batch(self, list keys, list found)
    cdef int _make_batch(self, Py_ssize_t count) except -1
    cdef Objects _extent(self, Py_ssize_t index)
    cdef int choose(self, KeyRows found, bytes key) except -1
    cdef u64 table_of(self, u64 hashed) noexcept
    cpdef int node_of(self, bytes key) except -1
    cpdef int enter_table(self, u64 base) except -1
    @cython.locals(size=u64)
    cdef int prefetch(self, KeyRows found) except -1
    @cython.locals(rows=Rows)
    cdef int post(self, KeyRows found) except -1
    @cython.locals(fingerprint=u64)
    cdef bint find(self, KeyRows found, bytes key) except -1
    cdef u64 row_at(self, KeyRows found, u64 place) noexcept
    cdef bint are_settled(self, KeyRows found) except -1
    @cython.locals(place=u64)
    cdef bint _are_whole(self, KeyRows found) except -1
    cdef int _post_versions(self, KeyRows found) except -1
    @cython.locals(rows=Rows, first=u64, second=u64)
    cdef bint _are_unchanged(self, KeyRows found) except -1
    cdef u64 header(self, KeyRows found) except? 0xFEEDFACEDEADBEA7
    @cython.locals(header=u64)
    cdef bytes value(self, KeyRows found)
    cpdef copies_of(self, KeyRows found, bytes key)
    @cython.locals(there=bint)
    cpdef header_of(self, KeyRows found, bytes key)
    @cython.locals(place=u64)
    cpdef bint is_damaged(self, KeyRows found) except -1
    @cython.locals(rows=Rows, locks=Locks)
    cpdef bint is_torn(self, u64 row) except -1
    cpdef damaged(self, KeyRows found)
