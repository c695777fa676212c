cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.phases cimport cas_alone, load_alone

cdef int EVERYBODY

cpdef bint spin(Endpoint endpoint, int look) except -1

cdef class Waiting:
    cdef readonly Endpoint endpoint
    cdef readonly u64 address
    cdef readonly u64 sleep_us
    cdef readonly bint spins

    cpdef bint spin(self, int look) except -1
    @cython.locals(word=u64, token=u64)
    cpdef u64 prepare(self) except? 0
    cpdef int sleep(self, u64 token, u64 timeout_us) except -1
    cpdef u64 post_look(self) except? 0
    @cython.locals(scope=bint, word=u64)
    cpdef u64 look(self) except? 0
    cpdef int wake(self) except -1
    @cython.locals(scope=bint, counted=u64)
    cpdef int wake_if(self, u64 word) except -1
    cpdef int wake_one(self) except -1
    @cython.locals(scope=bint, counted=u64, seen=u64)
    cpdef int wake_one_if(self, u64 word) except -1

cdef class Wait:
    cdef readonly Waiting waiting
    cdef readonly object deadline
    cdef readonly int looks
    cdef readonly bint sleepy
    cdef readonly u64 token
    cdef readonly bint slept

    cpdef int note(self) except -1
    @cython.locals(left=u64)
    cpdef bint pause(self, u64 most_us=*) except -1

cpdef object deadline_of(block, timeout)
cpdef object deadline_after(timeout)
@cython.locals(left=double)
cpdef u64 still_us(deadline) except? 0xFFFF
