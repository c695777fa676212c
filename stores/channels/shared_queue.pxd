cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.queue_places cimport Places

cdef int AGAIN
cdef int BATCH
cdef int DONE
cdef int EMPTY
cdef int FULL
cdef int NO_MEMORY
cdef u64 READY
cdef u64 ROUND_MASK
cdef int ROUND_SHIFT
cdef u64 STATE_MASK
cdef u64 WRITING

cdef class SharedQueue(Places):
    @cython.locals(data=bytes, last=Py_ssize_t)
    cpdef int _take_many(self, Py_ssize_t limit, list found) except -1
    @cython.locals(
        endpoint=Endpoint, tail=u64, at=u64, slot=u64, word=u64, number=u64, empty=bint, living=u64,
        lost=u64, before=u64,
    )
    cpdef bint _finished(self) except -1
