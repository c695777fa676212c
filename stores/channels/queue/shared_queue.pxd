cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.queue.completion cimport Completion
from limpet.stores.channels.queue.cyclic_ring cimport CyclicRing
from limpet.stores.channels.queue.layout cimport *
from limpet.stores.channels.queue.notes cimport Notes
from limpet.stores.channels.queue.tasks cimport Tasks
from limpet.stores.channels.regions.region cimport *
from limpet.stores.channels.waiting cimport Wait, Waiting
from limpet.stores.core.status cimport AGAIN, NO_MEMORY

cdef class SharedQueue(Channel):
    cdef readonly str codec
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly u64 maxsize
    cdef readonly u64 item_size
    cdef readonly u64 keep
    cdef readonly Waiting news
    cdef readonly Waiting room
    cdef readonly Waiting done_with
    cdef readonly Tasks tasks
    cdef readonly Notes notes
    cdef readonly CyclicRing ring
    cdef readonly Completion completion
    cdef public bint closed
    cdef public int patience

    cpdef u64 ready(self) except? 0xFFFF
    cdef object _take(self, bint skip)
    @cython.locals(last=Py_ssize_t)
    cpdef int _take_many(self, Py_ssize_t limit, list found) except -1
