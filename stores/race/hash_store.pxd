cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.clients.holds cimport Holds as ClientHolds
from limpet.shm.endpoint.slots cimport MISSED
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Attempt, Store, Window, as_bytes
from limpet.stores.core.feed cimport Feed
from limpet.stores.core.feed_layout cimport OPEN
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.batch cimport BatchSearch
from limpet.stores.race.batch_puts cimport BatchPuts
from limpet.stores.race.check cimport Check
from limpet.stores.race.glance cimport Glance
from limpet.stores.race.index cimport Index, Place, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.slots cimport Slots
from limpet.stores.race.splitter cimport Splitter

cdef object UNPROVEN

cdef class HashAttempt(Attempt):
    cdef u64 size
    cdef bint widened
    cdef object owner
    cdef u64 reference
    cdef u64 digest
    cdef u64 busy
    cdef u64 table
    cdef int wanted

cdef class HashStore(Store):
    cdef public Index index
    cdef public Objects objects
    cdef public Slots slots
    cdef public Splitter splitter
    cdef public Check checker
    cdef readonly Place place
    cdef readonly BatchSearch search
    cdef public BatchPuts puts
    cdef public bint deletes_batches
    cdef readonly int replicas
    cdef public Glance glance

    cpdef int hold_parts(self, Index index, Slots slots, Splitter splitter, Check check) except -1
    cpdef object glance_at(self, bytes key)
    cpdef int batches_puts(self) except -1
    cpdef int glance_by(self, Glance glance) except -1
    cpdef object get_once(self, bytes key, u64 attempt, long long at)
    @cython.locals(first=Py_ssize_t, row=Py_ssize_t)
    cpdef list get_batch(self, list keys, list found)
    @cython.locals(met=HashAttempt)
    cpdef Attempt _note(self, int outcome, Attempt way, bytes key, u64 size)
    @cython.locals(met=HashAttempt)
    cpdef Attempt _go_on(
        self, int outcome, Attempt way, bytes key, bytes value, u64 size, int mode, u64 attempt
    )
    @cython.locals(slot=u64)
    cdef object search_once(self, Place place, bytes key)
    @cython.locals(attempt=u64)
    cpdef object hold(self, bytes key, owner)
    @cython.locals(place=Place)
    cdef object _hold(self, bytes key, owner)
    @cython.locals(slot=u64, holds=ClientHolds)
    cpdef object hold_once(self, Place place, bytes key, owner)
    cpdef u64 busy_slot(self, u64 slot) noexcept
    @cython.locals(reference=u64, start=u64)
    cpdef object reserve_object(self, bytes key, u64 size, owner)
    @cython.locals(exact=u64, reference=u64)
    cdef u64 _allocated(self, bytes key, u64 size, owner) except? 0
    @cython.locals(node=u64, reference=u64, client=Client, holds=ClientHolds)
    cdef u64 _allocate(self, bytes key, u64 exact, owner) except? 0
    @cython.locals(way=HashAttempt)
    cpdef int link_reserved(self, bytes key, owner, u64 reference, u64 size, u64 digest) except -1
    @cython.locals(met=HashAttempt, client=Client, record=u64, holds=ClientHolds)
    cdef u64 resume(self, way) except? 0
    @cython.locals(holds=ClientHolds)
    cpdef int let_go_of(self, owner) except -1
    @cython.locals(
        count=int, first=Py_ssize_t, search=BatchSearch
    )
    cdef bint search_batch(self, Place place, list keys, list found) except -1
    @cython.locals(slot=u64)
    cdef int delete_once(self, Place place, bytes key) except -1
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(place=Place, reference=u64, desired=u64, slot=u64)
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(met=HashAttempt, reference=u64)
    cdef u64 make_object(
        self, Place place, bytes key, bytes value, u64 size, Attempt way
    ) except? 0
    @cython.locals(puts=BatchPuts)
    cpdef int run_batch(self, Window window) except -1
    @cython.locals(puts=BatchPuts, end=Py_ssize_t)
    cdef Py_ssize_t _batch(self, items, Py_ssize_t start, list left, list missing) except -1
    @cython.locals(feed=Feed, puts=BatchPuts, outcome=int, end=Py_ssize_t, undone=Py_ssize_t)
    cdef Py_ssize_t _batch_noted(self, items, Py_ssize_t start, list left, list missing) except -1
    cpdef int back_off(self, u64 busy, u64 table, u64 attempt) except -1
    @cython.locals(splitter=Splitter, scope=bint, attempt=u64, met=HashAttempt)
    cpdef int grow(self, bytes key) except -1
    @cython.locals(outcome=int, met=HashAttempt)
    cpdef HashAttempt _grow_once(self, bytes key)
