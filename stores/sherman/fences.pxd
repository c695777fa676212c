cimport cython

from limpet.shm.endpoint.verbs cimport u64, words_move
from limpet.stores.sherman.layout cimport *

cdef int HEAD_BYTES
cdef u64 HEAD_MAX

@cython.locals(raw='const unsigned char*', size=Py_ssize_t, place=Py_ssize_t, head=u64)
cdef u64 head_of(bytes key, Py_ssize_t skip) noexcept
@cython.locals(
    one='const unsigned char*', other='const unsigned char*', size=Py_ssize_t, place=Py_ssize_t
)
cpdef Py_ssize_t common_bytes(bytes first, bytes second) noexcept

cdef class Fences:
    cdef public list lows
    cdef bytes prefix
    cdef u64[::1] heads

    @cython.locals(count=Py_ssize_t, skip=Py_ssize_t, head=u64, first=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t below(self, bytes key, bint with_it) except -1
    @cython.locals(middle=Py_ssize_t)
    cdef Py_ssize_t _heads_below(self, u64 head, Py_ssize_t low, Py_ssize_t high) noexcept
    @cython.locals(lows=list, middle=Py_ssize_t, each=bytes)
    cdef Py_ssize_t _below(
        self, bytes key, bint with_it, Py_ssize_t low, Py_ssize_t high
    ) except -1
    @cython.locals(count=Py_ssize_t, skip=Py_ssize_t, place=Py_ssize_t)
    cdef int insert(self, Py_ssize_t index, bytes low) except -1
    cdef int remove(self, Py_ssize_t index) except -1
    @cython.locals(lows=list, count=Py_ssize_t, skip=Py_ssize_t, place=Py_ssize_t)
    cdef int begin(self) except -1

cdef class Run(Fences):
    cdef u64[::1] leaves

    cdef int insert_leaf(self, Py_ssize_t index, bytes low, u64 leaf) except -1
    cdef int remove_leaf(self, Py_ssize_t index) except -1
    @cython.locals(upper=Run, place=Py_ssize_t)
    cdef Run cut(self, Py_ssize_t index)
