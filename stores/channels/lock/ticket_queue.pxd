cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.lock.ticket_layout cimport *

cdef double TURN_S

cdef class HeadSighting:
    cdef double turn_s
    cdef double patience_s
    cdef u64 head
    cdef double since_s
    cdef u64 held_by
    cdef bint has_changed
    cdef bint kept
    cdef double kept_s

    cdef bint is_overdue(self, u64 head, u64 lock, double now) except -1

cdef class TicketQueue:
    cdef readonly Channel channel
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef public u64 address
    cdef readonly u64 places
    cdef readonly u64 sleep_us
    cdef u64 parked
    cdef HeadSighting sighting

    cdef u64 head(self) except? 0
    cdef int count_up(self, u64 head) except -1
    cdef u64 place(self, u64 ticket) noexcept
    cdef u64 _round(self, u64 ticket) noexcept
    @cython.locals(ident=u64, slot=u64, life=u64)
    cdef u64 _mine(self, u64 ticket, u64 state) noexcept
    @cython.locals(ticket=u64, end=u64, parked=u64, word=u64, place=u64, ahead=u64, endpoint=Endpoint)
    cpdef u64 draw(self) except? 0
    @cython.locals(word=u64)
    cpdef bint pass_over(self, u64 head, bint idle) except -1
    @cython.locals(slot=u64, there=u64, now=double)
    cdef bint _is_forsaken(self, u64 head, u64 word) except -1
    @cython.locals(head=u64, place=u64, word=u64, awake=u64, endpoint=Endpoint)
    cpdef bint wake(self) except -1
    @cython.locals(place=u64, asleep=u64, head=u64, endpoint=Endpoint)
    cdef u64 doze(self, u64 ticket, u64 flags) except? 0xFEEDFACEDEADBEA7
    @cython.locals(place=u64, given=u64, word=u64, endpoint=Endpoint)
    cdef int give_back(self, u64 ticket) except -1
