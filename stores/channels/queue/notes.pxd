cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.phases cimport cas_alone, load_alone
from limpet.stores.channels.queue.layout cimport *
from limpet.stores.channels.queue.tasks cimport QueueSlots, Tasks
from limpet.stores.channels.regions.links cimport unlink_from

cpdef u64 row_size(u64 keep, u64 item_size)

cdef class Notes:
    cdef readonly Participants participants
    cdef readonly QueueSlots slots
    cdef readonly Tasks tasks
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly u64 entries
    cdef readonly u64 keep
    cdef readonly u64 item_size
    cdef readonly u64 entry_size
    cdef readonly u64 row_size
    cdef u64[::1] header
    cdef u64[::1] states
    cdef u64[::1] sizes
    cdef readonly list taken
    cdef readonly list empty
    cdef public bint unsure

    cpdef u64 entry(self, u64 row, u64 number) except? 0
    cdef u64 _own_cell(self, u64 row, u64 number) noexcept
    cdef u64 _spare(self, u64 row, u64 number) except? 0
    @cython.locals(number=u64, at=u64)
    cpdef u64 note(self, u64 row, u64 ticket, bytes data, u64 cell) except? 0
    @cython.locals(endpoint=Endpoint, noted=u64)
    cpdef int mark_taken(self, u64 row, u64 number, u64 slot, u64 ticket, u64 word) except -1
    cdef int withdraw(self, u64 number) except -1
    @cython.locals(
        endpoint=Endpoint, at=u64, noted=u64, cell=u64, own=u64, spare=u64, tag=u64,
        size_ticket=u64, cell_ticket=u64, spare_ticket=u64, state_ticket=u64,
    )
    cdef _record_taken(self, u64 row, u64 number, u64 ticket, u64 slot)
    @cython.locals(
        endpoint=Endpoint, row=u64, ticket=u64, number=int, noted=u64, before=u64, tickets=list,
    )
    cpdef int finish(self, u64 place, u64 slot, u64 word) except -1
    @cython.locals(ticket=u64, place=u64, slot=u64, there=u64, following=u64, taken=u64)
    cpdef bint was_taken(self, u64 row, u64 word) except -1
    @cython.locals(
        endpoint=Endpoint, number=int, at=u64, word=u64, fewer=u64, ticket=u64,
        scope=bint,
    )
    cpdef bint close(self, u64 row) except -1
    @cython.locals(
        endpoint=Endpoint, at=u64, ticket=u64, cell=u64, spare_at=u64, spare=u64, link=u64,
        reference=u64, tag=u64, size_ticket=u64, cell_ticket=u64, spare_ticket=u64,
    )
    cdef bint _clear(self, u64 row, u64 number, u64 word) except -1
    @cython.locals(endpoint=Endpoint, number=u64, at=u64, word=u64, before=u64, kind=u64)
    cpdef reload(self, u64 row)
    @cython.locals(number=u64, at=u64, word=u64)
    cpdef fold(self, u64 row)
    @cython.locals(before=u64)
    cdef bint _is_closed(self, u64 row, u64 number) except -1
    @cython.locals(endpoint=Endpoint, at=u64, ident=u64, word=u64, kind=u64)
    cdef _lost_in(self, u64 row, u64 number)
    @cython.locals(size=u64, own=u64, cell=u64, reference=u64)
    cdef _noted_element(self, u64 at, u64 word)
    @cython.locals(at=u64, now=u64)
    cpdef forget(self, u64 row, u64 number, u64 word)
