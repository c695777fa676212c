cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.channels.lock.ticket_layout cimport *
from limpet.stores.core.inline cimport InlineIndex
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.loco.data_array cimport DataArray, EntryJournal
from limpet.stores.loco.layout cimport *
from limpet.stores.loco.local_index cimport LocalIndex

cdef int PATIENCE

cdef class KeyEntry:
    cdef public u64 hash
    cdef readonly u64 lock
    cdef readonly u64 table
    cdef readonly LocalIndex index
    cdef readonly DataArray entries
    cdef readonly long long entry
    cdef readonly u64 position

cdef class Lookup(InlineIndex):
    cdef readonly str name
    cdef readonly Endpoint endpoint
    cdef readonly object membership
    cdef readonly Objects objects
    cdef readonly EntryJournal journal
    cdef readonly list tables
    cdef readonly u64 table_count
    cdef readonly u64 entries_at
    cdef readonly u64 reaches_at
    cdef readonly u64 locks_at
    cdef readonly u64 journal_at
    cdef readonly u64 record_size
    cdef readonly list indexes
    cdef readonly KeyEntry found
    cdef readonly object parameters
    cdef u64[::1] batch
    cdef readonly list rows
    cdef u64[::1] tickets
    cdef u64[::1] places

    cdef bint is_late(self, u64 attempt) noexcept
    @cython.locals(found=KeyEntry, late=bint, outcome=int)
    cpdef int find_once(self, bytes key, u64 attempt) except -1
    @cython.locals(
        endpoint=Endpoint, entries=DataArray, journal=EntryJournal, at=u64, lock=u64, intent=u64,
        claim=u64, holder=u64, before=u64, updated=u64, count=u64,
    )
    cdef int _redone(self, KeyEntry found, bytes key) except -1
    @cython.locals(found=KeyEntry, outcome=int)
    cdef int glance(self, bytes key) except -1
    cdef bint is_object(self) except -1
    @cython.locals(entries=DataArray)
    cpdef bytes value_found(self)
    @cython.locals(link=u64)
    cdef bytes _value(self, DataArray entries)
    @cython.locals(at=KeyEntry, linked=bint, row=int, key=bytes, late=bint, entries=DataArray)
    cpdef list get_batch(self, list keys, list found)
    @cython.locals(at=KeyEntry, row=int)
    cdef int _read_rows(self, int count) except -1
    @cython.locals(position=u64)
    cdef bint _is_current(self, KeyEntry at, int row) except -1
    cpdef int make_rows(self) except -1
    @cython.locals(at=KeyEntry, size=u64, row=int, key=bytes, entry='long long')
    cdef int expect_keys(self, list keys) except -1
    cdef int _turn_to_row(self, KeyEntry at, int row) except -1
    cdef int choose(self, KeyEntry found, bytes key) except -1
    cpdef u64 table_of(self, bytes key) except? 0
    cpdef int node_of(self, bytes key) except -1
    cdef int enter_table(self, KeyEntry found, u64 table) except -1
    @cython.locals(ticket=u64)
    cdef u64 post(self, KeyEntry found) except? 0xFEEDFACEDEADBEA7
    @cython.locals(ticket=u64)
    cdef int read(self, KeyEntry found) except -1
    cdef int seek(self, KeyEntry found) except -1
    @cython.locals(entries=DataArray)
    cdef int look_up(self, KeyEntry found, bytes key) except -1
    cpdef damaged(self, KeyEntry found, long long entry)
