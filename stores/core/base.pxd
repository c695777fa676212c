from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.feed cimport Feed
from limpet.stores.core.status cimport *

cdef object UNPROVEN

cpdef bytes as_bytes(str what, data)

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
    cdef public u64 retries
    cdef bint prefetches
    cdef bint lends
    cdef object __weakref__

    cpdef int require_there(self) except -1
    cpdef object glanced(self, bytes key)
    cpdef object glance_at(self, bytes key)
    cpdef int show_progress(self, int count) except -1
    cdef int _after_a_drop(self) except -1
    cdef int _find_feed(self) except -1
    cpdef int _write(self, key, value, int mode) except -1
    cdef int _prefetch_batch(self, list keys) except -1
    cdef int _prefetch_keys(self, list keys) except -1
