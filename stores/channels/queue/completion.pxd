cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.phases cimport cas_alone, load_alone
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
        endpoint=Endpoint, maxsize=u64, tail=u64, at=u64, left=u64, here=u64, empty=bint,
        living=u64, lost=u64, forgotten=u64, tail_ticket=u64, head_ticket=u64, cut=list,
        tickets=list,
    )
    cpdef bint is_complete(self) except -1
    @cython.locals(words=list, step=u64, number=u64, word=u64, place=u64)
    cdef bint _are_taken(self, u64 ticket, u64 count, list cut) except -1
    cpdef bint has_more(self, u64 tail, u64 now) except -1
