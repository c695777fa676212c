cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.waiting cimport spin

cdef int BEHIND_MAX
cdef u64 CLIENT_SLOTS
cdef u64 FULL_ATTEMPT
cdef u64 GIVEN_BACK
cdef u64 HALF
cdef u64 HANDOFF
cdef u64 HEAD
cdef u64 HOLDER
cdef int INCARNATION_BITS
cdef u64 INCARNATION_MASK
cdef u64 INHERITED
cdef u64 LATER
cdef u64 LIFE_MASK
cdef int LIFE_SHIFT
cdef u64 PLACES
cdef u64 QUEUED
cdef u64 ROUND_MASK
cdef int ROUND_SHIFT
cdef u64 SLEEPING
cdef u64 SLOT_MASK
cdef int SLOT_SHIFT
cdef u64 SLOT_SIZE
cdef u64 STATE_MASK
cdef double TURN_S
cdef u64 WAITING
cdef int WAIT
cdef int TAKEN
cdef int PASSED

cdef class TicketLock:
    cdef readonly Channel channel
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 places
    cdef readonly u64 size
    cdef public bint inherited
    cdef readonly u64 barred
    cdef u64 sleep_us
    cdef u64 parked
    cdef double turn_s
    cdef u64 head
    cdef double head_s
    cdef u64 held_by
    cdef bint passed
    cdef bint kept
    cdef double kept_s

    cpdef bint acquire(self, double timeout=*) except -1
    cpdef int release(self) except -1
    cpdef bint is_ours(self) except -1
    cpdef bint grab(self) except -1
    @cython.locals(word=u64, seen=u64, mine=u64, endpoint=Endpoint)
    cpdef int drop(self) except -1
    cpdef bint locked(self) except -1
    cpdef u64 holder(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(word=u64, flags=u64)
    cpdef bint _take(self, bint head) except -1
    @cython.locals(word=u64, head=u64)
    cpdef bint seize(self) except -1
    @cython.locals(word=u64)
    cpdef int _bury(self) except -1
    cdef u64 _place(self, u64 ticket) noexcept
    cdef u64 _round(self, u64 ticket) noexcept
    @cython.locals(ident=u64, slot=u64, life=u64)
    cdef u64 _mine(self, u64 ticket, u64 state) noexcept
    @cython.locals(ticket=u64, end=u64, parked=u64, word=u64, place=u64, ahead=u64, endpoint=Endpoint)
    cpdef u64 _draw(self) except? 0
    @cython.locals(head=u64, first=u64)
    cdef int _look(self, u64 ticket, bint idle) except -1
    @cython.locals(word=u64)
    cpdef bint _pass_over(self, u64 head, bint idle) except -1
    @cython.locals(slot=u64, there=u64, lock=u64, now=double, patience_s=double)
    cdef bint _forsaken(self, u64 head, u64 word) except -1
    @cython.locals(head=u64, place=u64, word=u64, awake=u64, endpoint=Endpoint)
    cpdef bint _wake(self) except -1
    @cython.locals(place=u64, asleep=u64, head=u64, endpoint=Endpoint)
    cdef u64 _doze(self, u64 ticket, u64 flags) except? 0xFEEDFACEDEADBEA7
    @cython.locals(ticket=u64, flags=u64, asleep=u64, behind=u64, idle=bint, found=int, end=double, left=double)
    cdef bint _wait(self, double timeout) except -1
    @cython.locals(times=u64)
    cdef u64 _patience(self, u64 behind, double left) except 0
    @cython.locals(look=int)
    cdef bint _barge(self) except -1
    @cython.locals(look=int)
    cdef bint _spin(self) except -1
    @cython.locals(place=u64, given=u64, word=u64, endpoint=Endpoint)
    cdef int _give_back(self, u64 ticket) except -1
