cimport cython

from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport bit, hash64, u64
from limpet.stores.object_layout cimport *
from limpet.stores.status cimport *

cdef int ROWS_MAX
cdef int SIZE_MAX

cdef class Batch:
    cdef readonly int most
    cdef readonly int count
    cdef readonly list keys
    cdef readonly list values
    cdef readonly u64[::1] states
    cdef readonly u64[::1] sizes
    cdef readonly u64[::1] hashes
    cdef readonly u64[::1] nodes
    cdef readonly u64[::1] heads
    cdef readonly u64[::1] slots
    cdef readonly u64[::1] words
    cdef readonly u64[::1] updates
    cdef readonly u64[::1] desired
    cdef readonly u64[::1] places
    cdef public int first
    cdef readonly int logged
    cdef readonly u64[::1] objects
    cdef readonly u64[::1] links
    cdef readonly u64[::1] tickets
    cdef readonly u64[::1] references
    cdef public int width

    @cython.locals(
        count=int, end=Py_ssize_t, size=Py_ssize_t, pair=tuple, key=bytes, value=bytes, seen=u64,
        hashed=u64, keys=list, values=list,
    )
    cdef int take_in(self, pairs, Py_ssize_t start, Py_ssize_t prefix) except -1
    @cython.locals(count=int, end=Py_ssize_t)
    cdef int take_keys(self, list keys, Py_ssize_t start) except -1
    cdef int begin(self, list keys, list values) except -1
    @cython.locals(hashed=u64, other=int, same=int)
    cpdef bint repeats(self, int row) except -1
    cdef int end(self, int row) except -1
    @cython.locals(other=int, same=int)
    cdef bint taken(self, int row, u64 slot) except -1
    @cython.locals(places=int, updates=int, row=int)
    cdef int fit(self) except -1
    @cython.locals(row=int)
    cpdef int leave_ready(self) except -1
    @cython.locals(row=int)
    cdef int leave_out(self, Py_ssize_t start, list left) except -1
    cdef int log(self, u64 reference, u64 link) except -1
