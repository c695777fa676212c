cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Window
from limpet.stores.core.status cimport BATCH, INSERT, LEFT, MADE, READY
from limpet.stores.race.batch cimport Batch
from limpet.stores.race.batch_puts cimport BatchPuts
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.fast_reads cimport FastReads
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.max_register cimport Protocol
from limpet.stores.swarm.register cimport Register, is_tombstone
from limpet.stores.swarm.replica cimport Quorum
from limpet.stores.swarm.row cimport Row

cdef u64 CAPACITY_MOST
cdef u64 POSTED
cdef u64 BUFFERED
cdef u64 FAST
cdef u64 FAST_POSTED
cdef u64 FAST_MADE

cdef class BatchRows:
    cdef readonly object pool
    cdef readonly int entry
    cdef readonly str owner
    cdef readonly Finder finder
    cdef readonly object parameters
    cdef readonly list registers
    cdef readonly long long[::1] at
    cdef readonly u64[::1] states
    cdef readonly list values
    cdef u64[::1] hashes
    cdef FastReads fast

    cdef int make(self) except -1
    @cython.locals(fast=FastReads, cache=LocationCache, count=int, row=int, at='long long')
    cdef int select_reads(self, list keys) except -1
    @cython.locals(cache=LocationCache, row=int)
    cdef int select(self, list keys, int first, int count) except -1
    @cython.locals(register=KeyRegister, place=Register)
    cdef int _select_row(self, int row, bytes key, long long at) except -1
    @cython.locals(register=KeyRegister)
    cdef int hand_over(self, int row) except -1

cdef class BatchReads:
    cdef readonly BatchRows rows
    cdef readonly Finder finder
    cdef readonly Endpoint endpoint

    @cython.locals(end=int, there=bint)
    cdef list get(self, list keys, list found)
    @cython.locals(rows=BatchRows, fast=FastReads, posted=bint, row=int, register=KeyRegister)
    cdef bint post(self, int first, int end) except -1
    cdef bint wait(self) except -1
    @cython.locals(
        rows=BatchRows, fast=FastReads, posted=bint, row=int, register=KeyRegister, quorum=Quorum
    )
    cdef bint settle(self, int first, int end) except -1
    @cython.locals(
        rows=BatchRows, left=list, row=int, register=KeyRegister, quorum=Quorum
    )
    cdef list collect(self, int first, int end, bint there, list found)
    cpdef bint is_settled(self, KeyRegister register) except -1

cdef int SPARE_PLACES

cdef class BatchWrites(BatchPuts):
    cdef readonly BatchReads reads
    cdef readonly BatchRows rows
    cdef readonly Finder finder
    cdef readonly bint guesses
    cdef readonly object view

    @cython.locals(
        rows=BatchRows, first=int, read=bint, unknown=int, row=int, register=KeyRegister
    )
    cpdef int find_all(self, Batch batch, Window window) except -1
    @cython.locals(quorum=Quorum, row=Row)
    cdef bint _is_in_order(self, KeyRegister register) except -1
    @cython.locals(
        allocator=Allocator, client=Client, count=int, named=int, row=int, register=KeyRegister, size=u64,
        node=u64, reference=u64, value=bytes,
    )
    cpdef int make_all(self, Batch batch) except -1
    cdef int _first(self, Window window) except -1
    @cython.locals(first=int, there=bint, doubtful=bint, row=int)
    cpdef int change_all(self, Batch batch, Window window) except -1
    @cython.locals(posted=bint)
    cpdef bint _post_all(self, Batch batch) except -1
    @cython.locals(row=int, register=KeyRegister, protocol=Protocol)
    cdef bint _posted(self, Batch batch) except -1
    @cython.locals(
        register=KeyRegister, protocol=Protocol, outcome=int, cache=LocationCache
    )
    cdef int _finish(self, Batch batch, int row, bint doubtful) except -1
