cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.slots cimport CHANGED, MISSED, ROW_SIZE, ROWS, ROWS_COUNT
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.feed cimport Feed
from limpet.stores.core.feed_layout cimport OPEN
from limpet.stores.core.status cimport *

cdef object UNPROVEN

cpdef bytes as_bytes(str what, data)

cdef class Attempt:
    cdef public int outcome
    cdef public bytes expected

cdef class Window:
    cdef public list keys
    cdef public list pairs
    cdef public bytes modes
    cdef public list found
    cdef public list unread
    cdef public Py_ssize_t start
    cdef public Py_ssize_t end
    cdef public list left
    cdef public list doubtful
    cdef public object error

    cpdef bint reads(self) except -1
    cpdef int leave(self) except -1
    cpdef int stop(self, error, bint reads) except -1

cdef class Store:
    cdef readonly object pool
    cdef readonly str kind
    cdef readonly str name
    cdef readonly object parameters
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly Allocator allocator
    cdef public u64 entry_number
    cdef public u64 entry_word
    cdef readonly u64 drops
    cdef readonly Feed feed
    cdef readonly bint spares
    cdef public u64 operations
    cdef u64 row
    cdef public u64 retries
    cdef public bint prefetches
    cdef public bint glances
    cdef public bint locks_first
    cdef public bint batches_gets
    cdef bint lends
    cdef object __weakref__

    cpdef int require_there(self) except -1
    cpdef object glanced(self, bytes key)
    cpdef object glance_at(self, bytes key)
    @cython.locals(attempt=u64, at='long long', way=Attempt)
    cdef object _get_pinned(self, bytes key)
    @cython.locals(attempt=u64, at='long long', outcome=int)
    cpdef int _change(
        self, bytes key, bytes value, u64 size, int mode, Attempt way
    ) except -1
    cpdef int _count(self, u64 operations, u64 changes) except -1
    cpdef long long _prefetched(self, bytes key) except -2
    cpdef object _enter(self, bytes key, u64 attempt, bint writes)
    cpdef int _leave(self, held) except -1
    cpdef object get_once(self, bytes key, u64 attempt, long long at)
    cpdef list get_batch(self, list keys, list found)
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(feed=Feed, outcome=int)
    cdef int _change_noted(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    cpdef Attempt _note(self, int outcome, Attempt way, bytes key, u64 size)
    cpdef Attempt _go_on(
        self, int outcome, Attempt way, bytes key, bytes value, u64 size, int mode, u64 attempt
    )
    cpdef int show_progress(self, int count) except -1
    cdef int _after_a_drop(self) except -1
    cdef bint _find_feed(self) except -1
    cpdef int _write(self, key, value, int mode) except -1
    cpdef object hold(self, bytes key, owner)
    cpdef int let_go_of(self, owner) except -1
    cpdef object reserve_object(self, bytes key, u64 size, owner)
    cpdef int link_reserved(self, bytes key, owner, u64 reference, u64 size, u64 digest) except -1
    cpdef int run_batch(self, Window window) except -1
    cdef int _prefetch_batch(self, list keys) except -1
    cdef int _prefetch_keys(self, list keys) except -1
