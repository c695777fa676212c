cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, lowest_bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.batch cimport Batch, BatchSearch
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.layout cimport *

cdef u64 PATIENCE

cdef class Slots:
    cdef readonly Index index
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Objects objects

    @cython.locals(word=u64, found=u64, old=int, ticket=u64)
    cpdef int replace(self, Place place, u64 slot, u64 desired) except -1
    cpdef bint is_blind(self) except -1
    cdef u64 link_of(self, u64 slot, u64 head) except? 0
    cdef u64 old_link_of(self, u64 link) noexcept
    cpdef int begin_changes(self) except -1
    cpdef int end_changes(self) except -1
    cpdef bint takes_batches(self, Place place) noexcept
    @cython.locals(endpoint=Endpoint, row=int, inserts=int, place=Place)
    cpdef int change_all(self, BatchSearch search, Batch batch) except -1
    @cython.locals(slot=u64, word=u64, tentative=u64, place=Place)
    cdef int _post_change(self, BatchSearch search, Batch batch, int row) except -1
    @cython.locals(row=int, slot=u64)
    cpdef int end_phase(self, Batch batch) except -1
    @cython.locals(endpoint=Endpoint, row=int, place=Place, won=bint)
    cpdef int _decide_all(self, BatchSearch search, Batch batch) except -1
    @cython.locals(desired=u64)
    cdef int _post_decision(self, Batch batch, int row) except -1
    @cython.locals(endpoint=Endpoint, client=Client, row=int, count=int, whole=bint)
    cpdef int remove_all(self, Batch batch) except -1
    cdef int _post_removal(self, Batch batch, int row, u64 vacant) except -1
    @cython.locals(left=u64, at=int, word=u64)
    cpdef bint _has_rival(self, Place place, int row, u64 slot) except -1
    @cython.locals(row=int, count=int, made=int)
    cpdef int _free_replaced(self, Batch batch) except -1
    @cython.locals(index=int, slot=u64, vacant=u64, tentative=u64, ticket=u64)
    cpdef int insert(self, Place place, bytes key, u64 desired, u64 attempt) except -1
    @cython.locals(ticket=u64)
    cpdef bint decide(self, u64 slot, u64 tentative, u64 desired) except -1
    cpdef bint goes_on(self, Place place, bytes key, u64 slot, u64 attempt) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, theirs=u64)
    cpdef bint rival(self, Place place, bytes key, u64 slot, u64 attempt) except -1
    cpdef bint goes_first(self, u64 theirs, u64 slot, u64 attempt) except -1
    @cython.locals(ticket=u64)
    cpdef bint kick(self, u64 slot, u64 word) except -1
    cpdef u64 vacated(self, u64 word) except? 0
    @cython.locals(word=u64, old=int, ticket=u64)
    cpdef int remove(self, Place place, u64 slot) except -1
