cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.participants cimport Participants
from limpet.stores.channels.ring.layout cimport *
from limpet.stores.channels.ring.messages cimport Messages
from limpet.stores.status cimport *

cdef class Writer:
    cdef readonly Messages messages
    cdef readonly Endpoint endpoint
    cdef readonly Participants readers
    cdef readonly u64 acks
    cdef readonly u64 stride
    cdef readonly bint skips
    cdef readonly u64 ident
    cdef readonly u64 end
    cdef readonly u64 oldest
    cdef readonly u64 number
    cdef u64 limit

    @cython.locals(length=u64)
    cdef int send(self, bytes data) except -1
    cpdef int write(self, bytes data) except -1
    @cython.locals(messages=Messages, at=u64, mine=u64, ident=u64)
    cdef int _become(self) except -1
    cdef int resign(self) except -1
    @cython.locals(size=u64, floor=u64, row=u64, ident=u64, position=u64)
    cdef bint _has_room(self, u64 length) except -1
    cpdef bint counts(self, u64 word) except -1
    @cython.locals(messages=Messages, oldest=u64)
    cdef int _overwrite(self, u64 end) except -1
