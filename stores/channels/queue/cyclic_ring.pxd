cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport INCARNATION_BITS, PIN
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.channel cimport Mark
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.queue.layout cimport *
from limpet.stores.channels.queue.notes cimport Notes
from limpet.stores.channels.queue.tasks cimport QueueSlots, Tasks
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.channels.waiting cimport Waiting
from limpet.stores.core.status cimport AGAIN, FULL, NO_MEMORY

cdef class CyclicRing:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly Allocator allocator
    cdef readonly Mark mark
    cdef readonly Notes notes
    cdef readonly QueueSlots slots
    cdef readonly Tasks tasks
    cdef readonly Participants participants
    cdef readonly Waiting news
    cdef readonly Waiting room
    cdef readonly str name
    cdef readonly u64 maxsize
    cdef readonly u64 item_size
    cdef readonly u64 tail
    cdef readonly u64 head
    cdef u64[::1] header
    cdef readonly u64 unfinished

    @cython.locals(head=u64)
    cpdef long long length(self) except? -1
    @cython.locals(
        endpoint=Endpoint, size=u64, reference=u64, skipped=u64, index=int, tail=u64, number=u64,
        slot=u64, word=u64, ahead=u64, state=u64, writing=u64, owner=u64, ident=u64, place=u64,
    )
    cpdef object put(self, u64 row, bytes data)
    cpdef object _damaged(self, u64 ticket)
    cdef u64 _make(self, bytes data, u64 node) except? 0
    @cython.locals(endpoint=Endpoint, link=u64)
    cpdef int _fill(self, u64 slot, u64 place, bytes data, u64 reference, int index) except -1
    cdef int _filled(self, u64 reference, int index) except -1
    cdef int _give_up(self, u64 row, u64 slot, u64 reference, int index) except -1
    @cython.locals(word=u64, given_up=u64)
    cpdef int release(self, u64 row, u64 slot) except -1
    @cython.locals(number=u64)
    cdef int give_up_all(self, u64 row) except -1
    @cython.locals(owner=u64, ident=u64, pin=u64)
    cpdef bint abandoned(self, u64 row, u64 word) except -1
    @cython.locals(
        endpoint=Endpoint, head=u64, number=u64, slot=u64, word=u64, ahead=u64, state=u64, size=u64,
        cell=u64, data=bytes, begun=bint, place=u64, noted=u64, taken=u64,
    )
    cpdef object take(self, u64 row, bint skip)
    cdef bytes _read_large(self, u64 slot, u64 word, u64 size, u64 cell)
    @cython.locals(head=u64, tail=u64, number=u64, word=u64, count=u64)
    cpdef u64 count(self) except? 0xFFFF
