cimport cython

from limpet.stores.rtx.layout cimport *

cdef Py_ssize_t FEW
cdef Py_ssize_t NOT_WRITTEN

cdef class PendingWrite:
    cdef readonly bytes key
    cdef readonly bytes value

cdef class PendingWrites:
    cdef readonly Py_ssize_t count
    cdef readonly list writes
    cdef dict places

    @cython.locals(place=Py_ssize_t, other=PendingWrite)
    cpdef Py_ssize_t place_of(self, bytes key) except -2
    @cython.locals(place=Py_ssize_t, write=PendingWrite, places=dict)
    cpdef int write(self, bytes key, bytes value) except -1
    @cython.locals(place=Py_ssize_t, write=PendingWrite, places=dict)
    cdef int _find_places(self) except -1
    @cython.locals(last=Py_ssize_t)
    cpdef int sort(self) except -1
    @cython.locals(write=PendingWrite, other=PendingWrite, key=bytes, value=bytes)
    cdef int _sort_in(self, Py_ssize_t last) except -1
    @cython.locals(place=Py_ssize_t, count=Py_ssize_t, write=PendingWrite)
    cpdef Py_ssize_t puts(self) except -1
    @cython.locals(place=Py_ssize_t, write=PendingWrite)
    cpdef int clear(self) except -1

cpdef bytes key_of(PendingWrite write)
