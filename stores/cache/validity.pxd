cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.cache.layout cimport *

cdef u64 FLIGHT_US

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
    cdef public bint miss

    cdef u64 deadline(self, u64 now) noexcept

@cython.final
cdef class Validity:
    cdef readonly Endpoint endpoint
    cdef public u64 words
    cdef public u64 tags

    cdef u64[::1] head
    cdef u64[::1] tickets

    cdef u64 post_everything(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(
        endpoint=Endpoint, life=u64, birth=u64, deadline=u64, late=bint, now=u64, end=u64, flies=bint
    )
    cdef int state(self, u64 everything) except -1
    @cython.locals(count=int, place=int, since=int)
    cdef bint _is_invalidated(self, u64 tags, u64 birth) except -1
    @cython.locals(span=u64, deadline=u64, before=u64)
    cdef int slide(self, u64 at) except -1
    @cython.locals(ticket=u64)
    cpdef u64 birth(self) except? 0xFEEDFACEDEADBEA7
    cdef u64 post_birth(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(endpoint=Endpoint, number=u64, at=u64, there=u64, found=u64, ticket=u64, found_ticket=u64)
    cpdef int invalidate(self, u64 tag) except -1
