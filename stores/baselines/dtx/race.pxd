cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.base cimport as_bytes
from limpet.stores.race.old.store cimport Growing

cdef int AGAIN
cdef u64 PATIENCE
cdef u64 POINTER

cdef class LoggedGrowing(Growing):
    cdef u64 stop_offset
    cdef readonly u64 link
    cdef readonly object locks
    cdef readonly object recovery
    cdef u64 busy
    cdef bint stopped
    cdef u64 passed

    @cython.locals(key=bytes, stopped=bint)
    cdef int _get_batch(self, list keys, list found) except -1
    cdef int _write_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    cdef int _delete_once(self, bytes key) except -1
    cdef bint _is_stopped(self, u64 table) except -1
    cdef int _give_way(self, u64 attempt) except -1
    cdef int _wait(self, u64 attempt) except -1
    cdef int _stay(self, u64 at, u64 attempt) except -1
    cdef int _split(self) except -1
