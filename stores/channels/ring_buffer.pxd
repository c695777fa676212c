cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.waiting cimport Waiting

cdef u64 CLIENT_MASK
cdef u64 DATA
cdef int DONE
cdef u64 END
cdef u64 EVER
cdef int FULL
cdef u64 HEAD
cdef u64 NUMBER
cdef u64 OLDEST
cdef u64 POSITION_MAX
cdef u64 WRITER

cdef class RingBuffer(Channel):
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly u64 size
    cdef readonly bint skips
    cdef readonly Waiting news
    cdef readonly Waiting room
    cdef readonly object acks
    cdef readonly u64 ack_seats
    cdef readonly u64 ack_rows
    cdef readonly u64 ack_stride
    cdef readonly u64 ack_count
    cdef u64[::1] header
    cdef u64 writer_as
    cdef u64 end
    cdef u64 oldest
    cdef u64 number
    cdef u64 limit
    cdef u64 reader_as
    cdef readonly u64 position
    cdef u64 seen_end
    cdef u64 expected
    cdef u64 unsafe
    cdef u64 ack
    cdef readonly u64 lost
    cdef readonly bint closed

    cdef int _send_once(self, bytes data) except -1
    @cython.locals(endpoint=Endpoint, length=u64, at=u64)
    cdef int _append(self, bytes data) except -1
    @cython.locals(at=u64, mine=u64, ident=u64)
    cdef int _become_writer(self) except -1
    @cython.locals(number=u64, position=u64, oldest=u64, size=u64, last=u64)
    cdef u64 _number_at(self, u64 end) except? 0
    @cython.locals(floor=u64, row=u64, ident=u64, position=u64)
    cdef bint _has_room(self, u64 length) except -1
    cpdef bint _counts(self, u64 ident) except -1
    @cython.locals(oldest=u64)
    cdef int _overwrite(self, u64 end) except -1
    cdef u64 _length(self, u64 size, u64 room, u64 position) except 0
    cdef u64 _sound(self, u64 position) except? 0
    cpdef object _damaged(self, u64 position)
    cdef int _check_open(self) except -1
    cdef bytes _receive_once(self)
    @cython.locals(behind=u64)
    cdef u64 _behind(self, u64 at, u64 size) noexcept
    @cython.locals(endpoint=Endpoint, at=u64, start=u64, size=u64, number=u64, data=bytes, oldest=u64, length=u64)
    cdef bytes _next(self)
    @cython.locals(start=u64, rest=u64)
    cdef bytes _body(self, u64 at, u64 size)
