cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, crc_pair, u64
from limpet.stores.sherman.in_place_layout cimport *
from limpet.stores.sherman.page cimport Page

cdef u64 MASK
cdef u64 MIX

cdef class Node(Page):
    cdef u64 seed
    cdef u64[::1] roots
    cdef readonly bint idempotent
    cdef readonly bint whole

    cpdef int read(self, u64 at) except -1
    @cython.locals(words=u64[::1], count=Py_ssize_t, rear=u64, sum_read=u64)
    cpdef int read_image(self, u64 image, u64 at) except -1
    @cython.locals(words=u64[::1], count=Py_ssize_t)
    cpdef int advance(self, u64 at, u64 state) except -1
    cpdef int write(self, u64 at, u64 state) except -1
    @cython.locals(words=u64[::1], version=u64)
    cpdef int put(self, u64 at) except -1
    cpdef int put_image(self, u64 at) except -1
    cpdef bint is_whole(self) except -1
    @cython.locals(index=Py_ssize_t, found=bint)
    cdef bint _is_root(self, u64 at) except -1
    @cython.locals(mixed=u64)
    cdef u64 _checksum(self, u64 at) except? 0
