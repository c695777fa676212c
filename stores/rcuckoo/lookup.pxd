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
    cdef u64 at_first
    cdef u64 at_second
    cdef u64 place
    cdef int slot

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

    @cython.locals(found=KeyRows, settled=bint)
    cpdef int find_once(self, bytes key, u64 attempt) except -1
    @cython.locals(found=KeyRows, proven=bint, settled=bint)
    cdef int glance(self, bytes key) except -1
    cdef bint is_object(self) except -1
    @cython.locals(found=KeyRows, rows=Rows, header=u64)
    cpdef bytes value_found(self)
    @cython.locals(at=KeyRows, again=bint, key=bytes, value=bytes, header=u64)
    cpdef list get_batch(self, list keys, list found)
    cdef int choose(self, KeyRows found, bytes key) except -1
    cdef u64 table_of(self, u64 hashed) noexcept
    cpdef int node_of(self, bytes key) except -1
    cpdef int enter_table(self, u64 base) except -1
    @cython.locals(size=u64)
    cdef int prefetch(self, KeyRows found) except -1
    @cython.locals(rows=Rows)
    cdef int read(self, KeyRows found) except -1
    @cython.locals(fingerprint=u64)
    cdef bint find(self, KeyRows found, bytes key) except -1
    cdef u64 row_at(self, KeyRows found, u64 place) noexcept
    @cython.locals(rows=Rows, place=u64, first=u64, second=u64)
    cdef bint are_settled(self, KeyRows found) except -1
    cdef u64 header(self, KeyRows found) except? 0xFEEDFACEDEADBEA7
    cdef bytes value(self, KeyRows found, u64 header)
    cpdef copies_of(self, KeyRows found, bytes key)
    @cython.locals(there=bint)
    cpdef header_of(self, KeyRows found, bytes key)
    @cython.locals(place=int)
    cpdef bint is_damaged(self, KeyRows found) except -1
    @cython.locals(rows=Rows, locks=Locks)
    cpdef bint is_torn(self, u64 row) except -1
    cpdef damaged(self, KeyRows found)
