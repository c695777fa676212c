from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.times cimport MS
from limpet.stores.cache.layout cimport MINE
from limpet.stores.cache.store cimport CacheStore
from limpet.stores.cache.validity cimport Terms

cdef class CacheLock:
    cdef object __weakref__
    cdef readonly CacheStore store
    cdef readonly bytes key
    cdef readonly object ttl_ms
    cdef readonly dict flights

    cdef bint _take(self, Terms note, bint blocking, double timeout) except -1
    cpdef bint end(self) except -1
    cdef bint _lives(self, u64 flight) except -1
