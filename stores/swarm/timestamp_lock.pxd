cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.words cimport stamp_of, writer_of
from limpet.stores.swarm.write_back cimport WriteBack

cdef u64 ATTEMPTS_MAX
cdef int NODE_SHIFT
cdef int READ
cdef int REPLICAS_ROW
cdef int STAMP_SHIFT
cdef int WRITE

cdef class TimestampLock(WriteBack):
    cdef u64[::1] found

    @cython.locals(locked=u64, completed=int, refused=bint, k=int, rounds=int)
    cdef bint try_lock(self, u64 word, int mode) except -1
    @cython.locals(at=u64, iterations=int, expected=u64)
    cdef int _race(self, int k, u64 writer, u64 locked) except -1
