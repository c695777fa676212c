cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport INCARNATION_BITS, PIN
from limpet.shm.endpoint.verbs cimport Endpoint, Image, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.channel cimport Mark
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.phases cimport cas_alone, load_alone
from limpet.stores.channels.queue.layout cimport *
from limpet.stores.channels.queue.notes cimport Notes
from limpet.stores.channels.queue.tasks cimport QueueSlots, Tasks
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.channels.waiting cimport Waiting
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.status cimport AGAIN, FULL, NO_MEMORY

cdef u64 LEAST

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
    cdef Image image
    cdef u64 width
    cdef u64 next_put
    cdef u64 next_get
    cdef readonly u64 unfinished

    @cython.locals(scope=bint, head=u64, tail=u64, found=u64)
    cpdef long long length(self) except? -1
    @cython.locals(
        endpoint=Endpoint, size=u64, reference=u64, skipped=u64, index=int, tail=u64, number=u64,
        slot=u64, word=u64, ahead=u64, state=u64, writing=u64, owner=u64, ident=u64, place=u64,
        tail_ticket=u64, word_ticket=u64, mark=u64, ready=u64,
    )
    cpdef object put(self, u64 row, bytes data)
    cpdef object _damaged(self, u64 ticket)
    cdef u64 _make(self, bytes data, u64 node) except? 0
    @cython.locals(endpoint=Endpoint, link=u64, large=bint, cell=u64)
    cpdef u64 _fill(
        self, u64 slot, u64 place, bytes data, u64 reference, int index
    ) except? 0xFEEDFACEDEADBEA7
    cdef int _filled(self, u64 reference, int index, u64 mark) except -1
    cdef int _give_up(self, u64 row, u64 slot, u64 reference, int index) except -1
    @cython.locals(word=u64, given_up=u64)
    cpdef int release(self, u64 row, u64 slot) except -1
    @cython.locals(number=u64)
    cdef int give_up_all(self, u64 row) except -1
    @cython.locals(owner=u64, ident=u64, pin=u64)
    cpdef bint abandoned(self, u64 row, u64 word) except -1
    @cython.locals(
        endpoint=Endpoint, head=u64, number=u64, slot=u64, word=u64, ahead=u64, state=u64, size=u64,
        cell=u64, data=bytes, large=bint, place=u64, noted=u64, taken=u64, head_ticket=u64,
        word_ticket=u64, more=u64, scope=bint,
    )
    cpdef object take(self, u64 row, bint skip)
    @cython.locals(least=u64, there=u64)
    cdef bytes _element(self, u64 slot, u64 size)
    @cython.locals(reference=u64)
    cdef bytes _read_large(self, u64 slot, u64 word, u64 size, u64 cell)
    @cython.locals(
        endpoint=Endpoint, head=u64, tail=u64, step=u64, number=u64, ready=u64, count=u64, left=u64,
        here=u64, head_ticket=u64, tail_ticket=u64, words=list,
    )
    cpdef u64 count(self) except? 0xFFFF
    @cython.locals(endpoint=Endpoint, step=u64, place=u64, tickets=list)
    cpdef list words_of(self, u64 ticket, u64 count)
