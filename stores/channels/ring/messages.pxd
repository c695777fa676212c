cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.ring.layout cimport *

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
