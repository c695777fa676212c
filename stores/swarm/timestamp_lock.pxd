cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.register cimport Register
from limpet.stores.swarm.words cimport stamp_of, writer_of

@cython.final
cdef class TimestampLock:
    cdef Quorum quorum
    cdef Register register
    cdef Endpoint endpoint
    cdef u64[::1] found

    @cython.locals(quorum=Quorum, locked=u64, completed=int, refused=bint, k=int, rounds=int)
    cdef bint try_lock(self, u64 word, int mode) except -1
    @cython.locals(at=u64, iterations=int, expected=u64)
    cdef int _race(self, int k, u64 writer, u64 locked) except -1
