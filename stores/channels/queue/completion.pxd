cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.queue.cyclic_ring cimport CyclicRing
from limpet.stores.channels.queue.layout cimport *
from limpet.stores.channels.queue.notes cimport Notes
from limpet.stores.channels.queue.tasks cimport QueueSlots, Tasks

cdef class Completion:
    cdef readonly CyclicRing ring
    cdef readonly Tasks tasks
    cdef readonly Notes notes
    cdef readonly Endpoint endpoint
    cdef readonly Participants participants
    cdef readonly u64 forgotten
    cdef readonly str queue

    @cython.locals(
        endpoint=Endpoint, slots=QueueSlots, maxsize=u64, tail=u64, at=u64, left=u64, slot=u64,
        word=u64, number=u64, empty=bint, living=u64, lost=u64,
    )
    cpdef bint is_complete(self) except -1
    cpdef bint has_more(self, u64 tail) except -1
