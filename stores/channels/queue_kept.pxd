cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.tasks cimport Tasks

cdef u64 ADDRESS_MASK
cdef u64 BEFORE
cdef u64 CELL
cdef u64 CELL_MASK
cdef int CELL_SHIFT
cdef u64 CLAIMED
cdef u64 CLOSING
cdef u64 ENTRY_CELL
cdef u64 ENTRY_DATA
cdef u64 FREE
cdef u64 KIND
cdef u64 LINE
cdef u64 LOST
cdef u64 OWNER_MASK
cdef int OWNER_SHIFT
cdef u64 PENDING
cdef u64 ROUND_MASK
cdef int ROUND_SHIFT
cdef u64 SIZE
cdef u64 TAG_MASK
cdef u64 TAKEN
cdef int TICKET_SHIFT

cdef class Kept(Channel):
    cdef readonly u64 maxsize
    cdef readonly u64 item_size
    cdef readonly u64 stride
    cdef readonly u64 stripes
    cdef readonly u64 links
    cdef u64[::1] bases
    cdef readonly Tasks tasks
    cdef u64[::1] header
    cdef readonly u64 keep
    cdef readonly u64 entry_size
    cdef readonly u64 row_size
    cdef readonly u64 entries
    cdef readonly u64 cells
    cdef readonly u64 cell_count
    cdef readonly list held
    cdef readonly list vacant
    cdef public bint unsure

    cpdef u64 _slot(self, u64 number) except? 0
    cpdef u64 _entry(self, u64 row, u64 number) except? 0
    cdef u64 _spare(self, u64 row, u64 number) except? 0
    @cython.locals(number=u64)
    cpdef u64 _cell(self, u64 word, u64 own) except? 0
    @cython.locals(at=u64)
    cpdef u64 _link(self, u64 cell) except? 0
    @cython.locals(number=u64, at=u64)
    cpdef u64 _note(self, u64 ticket, bytes data, u64 cell) except? 0
    cdef int _noted(self, u64 number, u64 slot, u64 ticket, u64 word) except -1
    cdef int _not_noted(self, u64 number) except -1
    @cython.locals(endpoint=Endpoint, at=u64, noted=u64, cell=u64, own=u64, spare=u64, tag=u64)
    cpdef _settle(self, u64 row, u64 number, u64 ticket, u64 slot)
    @cython.locals(row=u64, ticket=u64, number=u64, noted=u64, before=u64)
    cpdef int _finish(self, u64 place, u64 slot, u64 word) except -1
    @cython.locals(ticket=u64, place=u64, slot=u64, there=u64, following=u64, taken=u64)
    cpdef bint _was_taken(self, u64 row, u64 word) except -1
    @cython.locals(number=int, at=u64, word=u64)
    cpdef bint _close(self) except -1
    @cython.locals(
        endpoint=Endpoint, at=u64, ticket=u64, cell=u64, spare_at=u64, spare=u64, link=u64,
        reference=u64, index=int, tag=u64,
    )
    cpdef bint _clear(self, u64 row, u64 number, u64 word) except -1
    @cython.locals(endpoint=Endpoint, row=u64, number=u64, at=u64, word=u64, before=u64, kind=u64)
    cpdef reload(self)
    @cython.locals(row=u64, number=u64, at=u64, word=u64)
    cpdef fold(self)
    @cython.locals(before=u64)
    cdef bint _is_closed(self, u64 row, u64 number) except -1
    @cython.locals(endpoint=Endpoint, at=u64, seat=u64, ident=u64, word=u64, kind=u64)
    cpdef _lost_in(self, u64 row, u64 number)
    @cython.locals(size=u64, own=u64, cell=u64, reference=u64)
    cdef _noted_element(self, u64 at, u64 word)
    @cython.locals(at=u64, now=u64)
    cpdef _forget(self, u64 row, u64 number, u64 word)
