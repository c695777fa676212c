cimport cython

from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.lock.ticket_layout cimport *
from limpet.stores.channels.lock.ticket_lock cimport TicketLock

cdef class KeyLocks(Channel):
    cdef readonly double patience_s
    cdef object store

    @cython.locals(there=bint)
    cpdef int enter(self) except -1
