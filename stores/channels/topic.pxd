cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.cells cimport Cells
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.waiting cimport Waiting

cdef u64 END_MAX

cdef class Topic

cdef class Subscription:
    cdef readonly Topic topic
    cdef public u64 position
    cdef public u64 lost

    cpdef get(self, bint block=*, timeout=*)

cdef class Topic(Cells):
    cdef readonly Waiting news

    @cython.locals(data=bytes, number=cython.longlong)
    cpdef long long publish(self, item) except -2
    @cython.locals(end=u64, cell=u64, look=u64)
    cdef long long _publish(self, bytes data) except -2
    cdef u64 _end(self) except? 0xFEEDFACEDEADBEA7
    cdef u64 _sane(self, u64 end) except? 0xFEEDFACEDEADBEA7
    @cython.locals(looks=int, token=u64, sleepy=bint, data=bytes, left=u64)
    cpdef object receive(self, Subscription reader, deadline)
    @cython.locals(
        endpoint=Endpoint, end=u64, position=u64, data=bytes, cell=u64, before=u64, after=u64,
        whole=bint,
    )
    cdef bytes _next(self, Subscription reader)
