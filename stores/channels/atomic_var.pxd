cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.numbers cimport wrapped

cdef class AtomicVar(Channel):
    @cython.locals(ticket=u64)
    cpdef u64 load(self) except? 0
    @cython.locals(ticket=u64)
    cpdef u64 swap(self, value) except? 0
    @cython.locals(ticket=u64)
    cpdef u64 faa(self, delta) except? 0
    @cython.locals(ticket=u64)
    cpdef u64 cas(self, expected, desired) except? 0
