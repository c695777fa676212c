cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.lock.ticket_lock cimport TicketLock
from limpet.stores.core.base cimport Window
from limpet.stores.core.status cimport *
from limpet.stores.loco.data_array cimport DataArray, EntryJournal
from limpet.stores.loco.layout cimport *
from limpet.stores.loco.local_index cimport LocalIndex
from limpet.stores.loco.locking cimport Locking
from limpet.stores.loco.lookup cimport Lookup
from limpet.stores.race.batch cimport Batch

cdef int DEFERRED

cdef class BatchUpdates:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Lookup lookup
    cdef readonly Locking locking
    cdef readonly Py_ssize_t key_size
    cdef readonly Py_ssize_t value_size
    cdef readonly EntryJournal journal
    cdef readonly list entries
    cdef readonly Batch batch
    cdef readonly list locks
    cdef readonly u64[::1] tables
    cdef readonly u64[::1] states
    cdef readonly u64[::1] found
    cdef readonly u64[::1] journals
    cdef readonly u64[::1] tickets
    cdef readonly u64[::1] intents
    cdef readonly u64[::1] held
    cdef readonly int count

    @cython.locals(batch=Batch, ready=int)
    cpdef Py_ssize_t put(
        self, pairs, Py_ssize_t start, list left, Window window
    ) except -1
    @cython.locals(
        lookup=Lookup, row=int, key=bytes, value=bytes, hashed=u64, table=u64,
        fits=bint, index=LocalIndex, ready=int,
    )
    cdef int _select(self) except -1
    @cython.locals(
        table=u64, hashed=u64, index=LocalIndex, entry='long long', number=u64, journal=u64,
        entries=DataArray,
    )
    cdef bint _choose(self, int row) except -1
    @cython.locals(ready=int, row=int)
    cdef int _choose_deferred(self) except -1
    @cython.locals(same=int, other=int)
    cpdef bint _has(self, int row, u64 journal) except -1
    @cython.locals(
        endpoint=Endpoint, mine=u64, lost=u64, row=int, lock=TicketLock, entries=DataArray, node=u64
    )
    cdef int _lock_all(self) except -1
    cdef u64 _wait(self, u64 lost) except? 0xFEEDFACEDEADBEA7
    @cython.locals(entries=DataArray)
    cpdef bint _may_update(self, int row) except -1
    @cython.locals(row=int)
    cdef int _update_all(self) except -1
    @cython.locals(entries=DataArray, journal=EntryJournal, entry=u64, state=u64, count=u64)
    cpdef int _update(self, int row) except -1
    @cython.locals(endpoint=Endpoint, mine=u64, lost=u64, posted=bint, row=int, lock=TicketLock, node=u64)
    cpdef int _unlock_all(self) except -1
    @cython.locals(lock=TicketLock)
    cdef int _dropped(self, int row) except -1
