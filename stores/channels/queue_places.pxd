cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.channels.queue_kept cimport Kept
from limpet.stores.channels.waiting cimport Waiting

cdef u64 ADDRESS_MASK
cdef int AGAIN
cdef u64 CELL
cdef u64 CLAIMED
cdef u64 DATA
cdef int DONE
cdef int EMPTY
cdef u64 FREE
cdef int FULL
cdef u64 CLIENT_SLOTS
cdef int INCARNATION_BITS
cdef int NODE_SHIFT
cdef int NO_MEMORY
cdef u64 OWNER_MASK
cdef int PIN
cdef int OWNER_SHIFT
cdef u64 LATER
cdef u64 READY
cdef u64 ROUND_MASK
cdef int ROUND_SHIFT
cdef u64 SIZE
cdef u64 SLOT_SIZE
cdef u64 SKIPPED
cdef u64 STATE_MASK
cdef u64 WRITING

cdef class Places(Kept):
    cdef readonly str codec
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly Heap heap
    cdef readonly Allocator allocator
    cdef readonly u64 tail
    cdef readonly u64 head
    cdef readonly Waiting news
    cdef readonly Waiting room
    cdef readonly Waiting done_with
    cdef readonly u64 unfinished
    cdef public int outcome
    cdef readonly u64 cell
    cdef u64 node
    cdef readonly u64 laggard
    cdef public bint closed
    cdef public int patience

    @cython.locals(
        endpoint=Endpoint, row=u64, size=u64, reference=u64, skipped=u64, index=int, tail=u64,
        number=u64, slot=u64, word=u64, ahead=u64, state=u64, writing=u64, owner=u64, ident=u64,
        place=u64,
    )
    cpdef int _place(self, bytes data) except -1
    @cython.locals(head=u64)
    cdef long long _length(self) except? -1
    cpdef object _damaged(self, u64 ticket)
    cdef u64 _ready(self) except? 0xFFFF
    cdef u64 _make(self, bytes data, u64 node) except? 0
    @cython.locals(endpoint=Endpoint, link=u64)
    cpdef int _fill(
        self, u64 slot, u64 place, bytes data, u64 reference, int index
    ) except -1
    cdef int _filled(self, u64 reference, int index) except -1
    cdef int _give_up(self, u64 slot, u64 reference, int index) except -1
    @cython.locals(word=u64, given_up=u64)
    cpdef int _release(self, u64 slot) except -1
    @cython.locals(owner=u64, ident=u64)
    cpdef bint _abandoned(self, u64 word) except -1
    @cython.locals(
        endpoint=Endpoint, head=u64, number=u64, slot=u64, word=u64, ahead=u64, state=u64,
        data=bytes, large=bint, begun=bint, row=u64, place=u64, noted=u64, taken=u64,
    )
    cpdef bytes _take(self, bint skip)
    cdef int _begin_again(self, bint begun) except -1
    @cython.locals(size=u64, reference=u64)
    cdef bytes _read(self, u64 slot, u64 word, u64 place)
    @cython.locals(head=u64, tail=u64, number=u64, word=u64, count=u64)
    cdef u64 _count(self) except? 0xFFFF
