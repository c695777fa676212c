cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.clients.holds cimport Holds as ClientHolds
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Store, as_bytes
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
    cdef public u64 reserved
    cdef public u64 reserved_size
    cdef public u64 reserved_digest

    cpdef int hold_parts(self, Index index, Slots slots, Splitter splitter, Check check) except -1
    cpdef object glance_at(self, bytes key)
    cpdef int batches_puts(self) except -1
    cpdef int glances(self, Glance glance) except -1
    @cython.locals(end=Py_ssize_t)
    cdef Py_ssize_t _batch(
        self, items, Py_ssize_t start, list left, list missing
    ) except -1
    @cython.locals(slot=u64)
    cdef object search_once(self, Place place, bytes key)
    @cython.locals(place=Place, attempt=u64, busy=u64, table=u64)
    cpdef hold(self, bytes key, owner)
    @cython.locals(slot=u64, holds=ClientHolds)
    cpdef hold_once(self, Place place, bytes key, owner)
    cpdef u64 busy_slot(self, u64 slot) noexcept
    @cython.locals(
        place=Place, exact=u64, node=u64, reference=u64, start=u64, holds=ClientHolds
    )
    cpdef reserve_object(self, bytes key, u64 size, owner)
    @cython.locals(
        place=Place, attempt=u64, outcome=int, busy=u64, table=u64, record=u64, holds=ClientHolds
    )
    cpdef int link_reserved(self, bytes key, owner, u64 reference, u64 size, u64 digest) except -1
    @cython.locals(holds=ClientHolds)
    cpdef let_go_of(self, owner)
    @cython.locals(
        row=int, count=int, first=Py_ssize_t, search=BatchSearch, decided=bint, slot=u64, at=Place
    )
    cdef bint search_batch(self, Place place, list keys, list found) except -1
    @cython.locals(slot=u64)
    cdef int delete_once(self, Place place, bytes key) except -1
    @cython.locals(place=Place, size=u64, exact=u64, attempt=u64, outcome=int, widened=bint, busy=u64, table=u64)
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(reference=u64, desired=u64, slot=u64)
    cdef int write_once(
        self, Place place, bytes key, bytes value, u64 size, int mode, u64 attempt
    ) except -1
    @cython.locals(feed=Feed, outcome=int)
    cdef int _write_noted(
        self, Place place, bytes key, bytes value, u64 size, int mode, u64 attempt
    ) except -1
    @cython.locals(feed=Feed, outcome=int)
    cdef int _delete_noted(self, Place place, bytes key) except -1
    @cython.locals(feed=Feed, outcome=int, end=Py_ssize_t, undone=Py_ssize_t)
    cdef Py_ssize_t _batch_noted(self, items, Py_ssize_t start, list left, list missing) except -1
    @cython.locals(reference=u64)
    cdef u64 make_object(self, Place place, bytes key, bytes value, u64 size) except? 0
    cpdef int back_off(self, u64 busy, u64 table, u64 attempt) except -1
    @cython.locals(
        place=Place, splitter=Splitter, scope=bint, attempt=u64, outcome=int, busy=u64, table=u64,
        wanted=int,
    )
    cpdef int grow(self, bytes key) except -1
