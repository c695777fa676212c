from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.cache.layout cimport *

cdef class Terms:
    cdef readonly u64 span
    cdef public u64 slide
    cdef public u64 stale
    cdef public u64 took
    cdef public u64 tags
    cdef public bint born_now
    cdef public u64 birth
    cdef public u64 checksum
    cdef public bint keep
    cdef public bint renew
    cdef public u64 flight
    cdef public bint pending

    cdef u64 deadline(self, u64 now) noexcept
