cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.base cimport Window
from limpet.stores.core.status cimport *
from limpet.stores.fusee.cache cimport IndexCache
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.slots cimport ReplicatedSlots
from limpet.stores.fusee.snapshot cimport ReplicatedSlot
from limpet.stores.race.batch cimport Batch, BatchSearch
from limpet.stores.race.batch_puts cimport BatchPuts
from limpet.stores.race.index cimport Place
from limpet.stores.race.layout cimport *

cdef int ALL
cdef int SPARE_PLACES

cdef class BatchedSlots(ReplicatedSlots):
    cdef readonly u64[::1] stamps
    cdef readonly u64[::1] links
    cdef readonly u64[::1] proposals
    cdef readonly u64[::1] words

    cpdef bint takes_batches(self, Place place) noexcept
    cdef u64 link_of(self, u64 slot, u64 head) except? 0
    cdef u64 old_link_of(self, u64 link) noexcept
    @cython.locals(row=int)
    cpdef int write_all(self, Batch batch) except -1
    cpdef int change_all(self, BatchSearch search, Batch batch) except -1
    @cython.locals(row=int)
    cpdef int _change(self, BatchSearch search, Batch batch) except -1
    @cython.locals(row=int, first=int, last=int)
    cpdef int _propose_all(self, BatchSearch search, Batch batch) except -1
    @cython.locals(row=int, found=bint)
    cdef bint _proposes(self, Batch batch, u64 k) except -1
    @cython.locals(slot=ReplicatedSlot, k=u64, at=u64, place=Place)
    cpdef int _post_proposals(
        self, BatchSearch search, Batch batch, int row, u64 first, u64 last
    ) except -1
    @cython.locals(old=u64, new=u64, was=u64, backups=u64, k=u64, at=int)
    cdef int _look_at_proposals(self, Batch batch, int row, u64 first, u64 last) except -1
    @cython.locals(new=u64, k=u64)
    cdef bint _all_ours(self, BatchSearch search, Batch batch, int row) except -1
    @cython.locals(place=Place, at=int)
    cdef bint _has_first(self, BatchSearch search, Batch batch, int row) except -1
    @cython.locals(row=int, place=Place, own=int)
    cpdef int _find_rivals(self, BatchSearch search, Batch batch) except -1
    @cython.locals(row=int)
    cpdef int _mark_all(self, Batch batch) except -1
    @cython.locals(row=int, was=u64, won=bint)
    cpdef int _decide_rounds(self, Batch batch) except -1
    @cython.locals(slot=ReplicatedSlot, client=Client, at=int, old=u64, new=u64, won=bint)
    cpdef int _go_on(self, BatchSearch search, Batch batch, int row) except -1
    cpdef bint _recall_all(self, Batch batch, int node) except -1
    @cython.locals(row=int, doing=int)
    cpdef int _recall_rows(self, Batch batch) except -1

cdef class ReplicatedPuts(BatchPuts):
    cdef readonly BatchedSlots rounds
    cdef readonly IndexCache cache

    cpdef int write_all(self, Batch batch) except -1
    @cython.locals(row=int, at='long long', where=int, place=Place)
    cpdef int change_all(self, Batch batch, Window window) except -1
