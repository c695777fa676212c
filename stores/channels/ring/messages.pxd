cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, Image, u64
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.ring.layout cimport *
from limpet.stores.channels.waiting cimport Waiting
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.status cimport *

cdef int AHEAD
cdef int LEAST

cdef class Messages:
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 size
    cdef readonly str ring
    cdef u64[::1] header

    cdef u64 end(self) except? 0
    cdef u64 oldest(self) except? 0
    @cython.locals(start=u64, at=u64)
    cpdef int write(self, u64 position, u64 number, bytes data) except -1
    @cython.locals(start=u64, at=u64, rest=u64)
    cdef int post_read(self, u64 position, u64[::1] words, u64 count) except -1
    cdef u64 place(self, u64 position) noexcept
    cdef u64 size_at(self, u64 place) except? 0
    cdef u64 number_at(self, u64 place) except? 0
    @cython.locals(start=u64, at=u64, rest=u64)
    cdef bytes body_at(self, u64 place, u64 size)
    @cython.locals(behind=u64)
    cdef u64 _behind(self, u64 at, u64 size) noexcept
    @cython.locals(number=u64, position=u64, oldest=u64, at=u64, size=u64, last=u64)
    cpdef u64 next_number(self, u64 end) except? 0
    cdef u64 length(self, u64 size, u64 room, u64 position) except 0
    cdef u64 sound(self, u64 position) except? 0
    cpdef object damaged(self, u64 position)

cdef class Reader:
    cdef readonly Messages messages
    cdef readonly Endpoint endpoint
    cdef readonly Waiting room
    cdef readonly bint skips
    cdef Image image
    cdef u64 width
    cdef public u64 ident
    cdef u64 ack
    cdef readonly u64 position
    cdef u64 seen_end
    cdef u64 expected
    cdef u64 unsafe
    cdef readonly u64 lost

    @cython.locals(messages=Messages, end=u64)
    cdef int begin(self, u64 ident, u64 ack, start) except -1
    @cython.locals(
        messages=Messages, endpoint=Endpoint, image=Image, width=u64, first=u64, end_ticket=u64,
        oldest=u64, size=u64, number=u64, data=bytes, length=u64,
    )
    cdef bytes next(self)
    cdef u64 _post_oldest(self) except? 0
    @cython.locals(scope=bint)
    cdef int _acknowledge(self) except -1
    cpdef bint was_overtaken(self, u64 oldest) except -1

cdef class Writer:
    cdef readonly Messages messages
    cdef readonly Endpoint endpoint
    cdef readonly Waiting news
    cdef readonly Participants readers
    cdef readonly u64 acks
    cdef readonly u64 stride
    cdef readonly bint skips
    cdef readonly u64 ident
    cdef readonly u64 end
    cdef readonly u64 oldest
    cdef readonly u64 number
    cdef u64 limit
    cdef u64[::1] rows
    cdef u64[::1] tickets
    cdef u64[::1] ahead
    cdef u64 ahead_from
    cdef u64 ahead_end
    cdef u64[::1] word

    @cython.locals(length=u64, ahead=u64, ticket=u64)
    cdef int send(self, bytes data) except -1
    cpdef int write(self, bytes data) except -1
    @cython.locals(messages=Messages, at=u64, mine=u64, ident=u64)
    cdef int _become(self) except -1
    cdef int resign(self) except -1
    @cython.locals(endpoint=Endpoint, size=u64, floor=u64, row=u64, ident=u64, position=u64)
    cdef bint _has_room(self, u64 length) except -1
    cpdef bint counts(self, u64 word) except -1
    @cython.locals(messages=Messages, endpoint=Endpoint, oldest=u64, ahead=u64, size=u64)
    cdef u64 _overwrite(self, u64 end) except? 0
    @cython.locals(count=u64)
    cdef u64 _post_ahead(self, u64 position) except? 0
