cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rtx.commit cimport Commit, SlotWrite
from limpet.stores.rtx.reads cimport ReadPlace

cdef int AGAIN
cdef int DONE
cdef int FULL
cdef u64 SLOT

cdef class WriteSet:
    cdef readonly object store
    cdef readonly Commit commit

    @cython.locals(commit=Commit, slot=u64, word=u64, found=bytes)
    cpdef int stage(self, bytes key, bytes value) except -1
