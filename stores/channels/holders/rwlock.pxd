cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.holders.holders cimport Holders
from limpet.stores.channels.holders.layout cimport *

cdef class RwLock

cdef class Side:
    cdef readonly RwLock lock
    cdef readonly int line
    cdef readonly double timeout

    cpdef bint acquire(self, bint blocking=*, timeout=*) except -1
    cpdef int release(self) except -1

cdef class RwLock(Holders):
    cdef long long forks
    cdef readonly dict readers
    cdef readonly u64 writer

    cdef int _forget(self) except -1
    @cython.locals(thread=u64, again=bint, taken=bint, noted=bint)
    cpdef bint take(self, int line, deadline) except -1
    @cython.locals(thread=u64)
    cpdef int check_wait(self, int line) except -1
    @cython.locals(thread=u64, found=int)
    cpdef int take_in_line(self, int line) except? -1
    cdef int _note(self, int line, u64 thread) except -1
    @cython.locals(thread=u64)
    cpdef int uses(self, int line) except -1
    @cython.locals(thread=u64, has=bint)
    cpdef int drop(self, int line) except -1
