cimport cython

from limpet.shm.verbs cimport u64

cdef u64 FADE

cdef class Place:
    cdef public u64 home
    cdef public u64 word
    cdef public u64 asked
    cdef public u64 invalid

cdef class IndexCache:
    cdef Py_ssize_t half
    cdef double threshold
    cdef dict young
    cdef dict old

    cpdef int forget(self) except -1
    @cython.locals(place=Place)
    cpdef Place find(self, bytes key)
    cpdef bint trusts(self, Place place) except -1
    cpdef int judge(self, Place place, u64 word) except -1
    @cython.locals(place=Place)
    cpdef int remember(self, bytes key, u64 home, u64 word) except -1
    cdef int _add(self, bytes key, Place place) except -1
