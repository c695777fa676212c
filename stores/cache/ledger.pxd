cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.cache.layout cimport *

cdef u64 MASK

@cython.final
cdef class Counters:
    cdef readonly Endpoint endpoint
    cdef readonly Client client
    cdef readonly u64 clients
    cdef readonly u64 words
    cdef u64 line
    cdef u64 owner
    cdef readonly u64 asked

    cpdef int place(self, u64 words) except -1
    cpdef int count(self, u64 what, u64 number) except -1
    cpdef int ask(self, u64 asked) except -1
    @cython.locals(ident=u64)
    cdef int _find_line(self) except -1

cdef class Ledger:
    cdef readonly Endpoint endpoint
    cdef readonly object grace
    cdef readonly u64 made
    cdef readonly u64 limits
    cdef readonly bint resizing
    cdef public u64 words

    cdef u64[::1] tickets
    cdef u64 sum
    cdef u64 latest
    cdef u64 limits_ticket

    @cython.locals(ticket=u64)
    cpdef u64 lap(self) except? 0xFEEDFACEDEADBEA7
    @cython.final
    cdef u64 post_lap(self) except? 0xFEEDFACEDEADBEA7
    @cython.final
    cdef u64 bank(self, u64 lap) noexcept
    cpdef u64 total(self, u64 lap) except? 0xFEEDFACEDEADBEA7
    @cython.locals(place=int, back=u64, ticket=u64, total=u64)
    cdef int _post_total(self, u64 lap) except -1
    @cython.locals(place=int, total=u64, limits=u64)
    cdef u64 _total(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(most=u64)
    cpdef bint fits(self, u64 total) except -1
    cpdef bint has_room(self, u64 more) except -1
    @cython.final
    cdef bint takes(self, u64 size) noexcept
    cpdef int post(self, u64 lap, u64 units) except -1
    @cython.locals(total=u64)
    cpdef bint admits(self, u64 spare) except -1
    @cython.final
    cdef bint tight(self, u64 units) noexcept
    cpdef int withdraw(self, u64 lap, u64 units) except -1
    @cython.locals(endpoint=Endpoint, ticket=u64, life=u64, lap=u64, its=u64)
    cpdef int account(self, u64 head, u64 units) except -1
    @cython.locals(its=u64, behind=u64, renewed=u64, found=u64)
    cpdef u64 restamp(self, u64 head, u64 life, u64 units, u64 lap) except? 0xFEEDFACEDEADBEA7
    @cython.locals(endpoint=Endpoint, lap=u64, period=u64, closed=u64, following=u64)
    cpdef bint end_lap(self, u64 hand) except -1
