cimport cython

cdef Py_ssize_t FEW
cdef Py_ssize_t KEPT
cdef Py_ssize_t NOT_WRITTEN

cdef class PendingWrites:
    cdef readonly Py_ssize_t count
    cdef readonly list keys
    cdef readonly list values
    cdef dict places

    @cython.locals(place=Py_ssize_t, other=bytes)
    cpdef Py_ssize_t place_of(self, bytes key) except -2
    @cython.locals(place=Py_ssize_t)
    cpdef int write(self, bytes key, bytes value) except -1
    @cython.locals(place=Py_ssize_t)
    cdef int _added(self, bytes key) except -1
    @cython.locals(last=Py_ssize_t, place=Py_ssize_t)
    cpdef int sort(self) except -1
    @cython.locals(place=Py_ssize_t, count=Py_ssize_t)
    cpdef Py_ssize_t puts(self) except -1
    @cython.locals(place=Py_ssize_t)
    cpdef int clear(self) except -1
