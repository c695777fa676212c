cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.base cimport Store, as_bytes
from limpet.stores.records cimport Objects

cdef int BATCH
cdef int DELETE
cdef int MISSING

cdef class InlineStore(Store):
    cdef readonly u64 key_size
    cdef readonly u64 value_size
    cdef readonly Objects objects

    cpdef int _write(self, key, value, int mode) except -1
    cpdef u64 object_size(self, bytes key, bytes value) except? 0
    cpdef list _get_batch(self, list keys, list found)
    cpdef int _change(self, bytes key, bytes value, u64 size, int mode) except -1
