cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.channel cimport Channel

cdef u64 MASK
cdef int WORD

cdef class Array(Channel):
    cdef readonly Py_ssize_t length
    cdef readonly str typecode

    @cython.locals(place=Py_ssize_t)
    cdef u64 _at(self, index) except? 0xFFFF
    @cython.locals(beyond=cython.longlong)
    cdef _number(self, u64 word)
    cdef list _slice(self, part)
    @cython.locals(at=u64, word=u64)
    cdef _store(self, list spots, list values)
    @cython.locals(at=u64, small=cython.longlong, word=u64, after=u64)
    cpdef add(self, index, delta=*)
    @cython.locals(before=u64)
    cdef double _add_double(self, u64 at, double delta) except? -1
