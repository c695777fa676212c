cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.feed_layout cimport *
from limpet.stores.core.status cimport *

cdef class Feed:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 clients
    cdef readonly u64 ring
    cdef u64 ident
    cdef u64 place
    cdef u64 entries
    cdef u64 end
    cdef u64 begun
    cdef readonly u64 tail
    cdef list tails
    cdef public object news
    cdef readonly bint lost
    cdef object __weakref__

    cpdef int open(self, bytes key, int mode) except -1
    cpdef int begin(self) except -1
    @cython.locals(size=u64, length=u64, kind=u64, at=u64, room=u64)
    cpdef int note(self, bytes key, int mode) except -1
    cpdef int announce(self) except -1
    cpdef int open_all(self, list keys, int mode) except -1
    cpdef int close_some(self, Py_ssize_t count, int outcome) except -1
    cpdef int close(self, int outcome) except -1
    cdef int _publish(self, int outcome) except -1
    cdef int _wake(self) except -1
    @cython.locals(slot=u64)
    cdef int _take_place(self) except -1
    @cython.locals(end=u64, begun=u64)
    cdef int _end_what_is_open(self) except -1
    @cython.locals(at=u64, word=u64, length=u64)
    cdef int _mark_unsure(self, u64 first, u64 end) except -1

@cython.final
cdef class Look:
    cdef object store
