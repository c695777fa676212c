cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.lock.ticket_layout cimport *
from limpet.stores.channels.lock.ticket_queue cimport TicketQueue
from limpet.stores.channels.waiting cimport spin

cdef int LOOK
cdef int SPIN
cdef int NO_PLACE
cdef int DOZE
cdef int TAKEN
cdef int GIVEN_UP
cdef int WAITS
cdef int PASSED
cdef int FULL_US

cdef class TicketLock:
    cdef readonly Channel channel
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 places
    cdef readonly u64 size
    cdef public bint inherited
    cdef readonly u64 barred
    cdef readonly TicketQueue queue

    cpdef bint acquire(self, double timeout=*) except -1
    cpdef int release(self) except -1
    cpdef bint is_ours(self) except -1
    @cython.locals(ticket=u64)
    cpdef bint grab(self) except -1
    cpdef bint grabbed(self, u64 word) except -1
    @cython.locals(mine=u64, endpoint=Endpoint, ticket=u64, scope=bint)
    cpdef int drop(self) except -1
    @cython.locals(word=u64, mine=u64, endpoint=Endpoint)
    cpdef int dropped(self, u64 seen) except -1
    cpdef bint locked(self) except -1
    @cython.locals(ticket=u64)
    cpdef u64 holder(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(word=u64, flags=u64)
    cpdef bint _take(self, bint head) except -1
    @cython.locals(word=u64, head=u64)
    cpdef bint seize(self) except -1
    @cython.locals(word=u64)
    cpdef int _bury(self) except -1
    @cython.locals(head=u64, first=u64)
    cdef int check_turn(self, u64 ticket, bint idle) except -1

cdef class TicketWait:
    cdef TicketLock lock
    cdef TicketQueue queue
    cdef Channel channel
    cdef Endpoint endpoint
    cdef object now
    cdef bint timed
    cdef double end
    cdef double left
    cdef u64 ticket
    cdef u64 behind
    cdef u64 flags
    cdef bint idle
    cdef bint taken
    cdef bint apart

    cdef bint try_at_once(self, bint seizes) except -1
    @cython.locals(state=int, asleep=u64)
    cpdef object look(self, bint slept, bint idle)
    @cython.locals(state=int)
    cdef bint run(self) except -1
    cdef int _undo(self) except -1
    @cython.locals(ticket=u64)
    cpdef int give_up(self) except -1
    cdef int _step(self, int state) except -1
    @cython.locals(found=int)
    cdef int _check_turn(self) except -1
    @cython.locals(asleep=u64, place=u64)
    cdef int _doze(self) except -1
    @cython.locals(times=u64)
    cdef u64 _patience_us(self) except 0
    @cython.locals(look=int)
    cdef bint _barge(self) except -1
    @cython.locals(look=int)
    cdef bint _spin(self) except -1
