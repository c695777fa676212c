cimport cython

from limpet.shm.verbs cimport u64
from limpet.stores.loco.channel cimport Channel
from limpet.stores.loco.ticket_lock cimport TicketLock

cdef class KeyLocks(Channel):
    cdef readonly double patience_s
    cdef object store

    @cython.locals(there=bint)
    cpdef int enter(self) except -1
