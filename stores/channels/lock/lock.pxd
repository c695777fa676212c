cimport cython

from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.lock.ticket_lock cimport TicketLock

cdef int DELEGATE
cdef int GONE
cdef int HANDOVERS_MAX
cdef int HOLDER
cdef double LOOK_S
cdef int NOTHING

cdef class Gate:
    cdef readonly unsigned long long thread
    cdef readonly object opened
    cdef readonly object waits
    cdef readonly int role

    cpdef bint has_lock(self) except -1

cdef class Lock(Channel):
    cdef readonly bint recursive
    cdef public object whose
    cdef readonly TicketLock ticket
    cdef readonly object line
    cdef readonly bint lined
    cdef unsigned long long ident
    cdef readonly unsigned long long held_by
    cdef readonly int count
    cdef readonly bint delegated
    cdef int handovers

    @cython.locals(thread=cython.ulonglong, seconds=double, taken=bint, known=bint, left=bint)
    cpdef bint acquire(self, bint blocking=*, timeout=*) except -1
    cpdef int release(self) except -1
    @cython.locals(gate=Gate)
    cdef int _release(self) except -1
    cpdef bint locked(self) except -1
    cdef int _forget(self) except -1
    cdef int _adopt(self) except -1
    @cython.locals(dropped=bint)
    cdef int _let_go(self) except -1
    @cython.locals(gate=Gate)
    cdef int _resign(self) except -1
    @cython.locals(gate=Gate)
    cdef Gate _first(self)
    @cython.locals(end=double, role=int, taken=bint)
    cdef bint _wait(self, unsigned long long thread, double timeout) except -1
    cpdef int _end_delegation(self, unsigned long long thread, bint taken) except -1
    @cython.locals(gate=Gate)
    cdef int _line_up(self, unsigned long long thread, double end) except -1
    cpdef bint _join_line(self, Gate gate) except -1
    cpdef int _abandon(self, Gate gate) except -1
    @cython.locals(left=double)
    cdef bint _stand(self, Gate gate, double end) except -1
    cdef bint _step_out(self, Gate gate) except -1
