cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.status cimport *
from limpet.stores.transactions.hash_keys cimport HashKeys
from limpet.stores.transactions.reads cimport KeyRead

cdef class Change:
    cdef readonly u64 slot
    cdef readonly u64 old
    cdef readonly u64 new

cdef class SlotWrite(Change):
    cdef readonly HashKeys keys
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly KeyRead read
    cdef readonly bint inserts
    cdef readonly u64 hash
    cdef readonly u64 size
    cdef readonly u64 reference
    cdef public u64 ticket
    cdef public bint applied

    cdef int stage(
        self, HashKeys keys, u64 slot, bytes key, bytes value, u64 old, KeyRead read, bint inserts,
        u64 hashed
    ) except -1
    cdef int forget(self) except -1
    cdef int vacate(self) except -1
    cdef int take(self, u64 reference) except -1
    cdef int write_pair(self) except -1
    @cython.locals(keys=HashKeys, reference=u64)
    cpdef int write_alone(self) except -1
    @cython.locals(keys=HashKeys)
    cpdef bint is_alone(self) except -1

cpdef u64 slot_of(Change change) except? 0
