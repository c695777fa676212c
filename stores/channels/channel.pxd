cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.layout cimport *

cdef class Mark:
    cdef readonly u64 address
    cdef readonly u64 number
    cdef readonly u64 drops
    cdef readonly set nodes
    cdef readonly set gone
    cdef object __weakref__

    cpdef int doubt(self) except -1

cdef class Channel

cdef class Operation:
    cdef readonly bint anyhow
    cdef Channel channel

cdef class Channel:
    cdef readonly object manager
    cdef public object parameters
    cdef readonly object pool
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly object membership
    cdef readonly object parent
    cdef readonly str name
    cdef readonly u64 address
    cdef readonly int rows
    cdef readonly u64 seats
    cdef readonly u64 own_row
    cdef u64 joined_as
    cdef public object seen
    cdef readonly Mark marked
    cdef object __weakref__

    cpdef int enter(self) except -1
    @cython.locals(marked=Mark, there=bint)
    cdef int _find_mark(self) except -1
    cpdef int leave(self) except -1
    @cython.locals(mine=u64, seen=u64)
    cpdef u64 row(self) except? 0xFFFF
    @cython.locals(row=u64, seat=u64, mine=u64, level=int, endpoint=Endpoint)
    cdef u64 _claim(self) except? 0xFFFF
    @cython.locals(seat=u64, ident=u64, there=u64, mine=u64, endpoint=Endpoint)
    cdef bint _take_over(self, u64 row, bint last) except -1
