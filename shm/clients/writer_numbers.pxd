from limpet.shm.clients.client cimport Client
from limpet.shm.clients.unique_ids cimport Clock
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64

cdef u64 CLAIMED
cdef int CLAIM_LEASES
cdef u64 CLOCK_STRIDE_US
cdef int HOLDER_BITS
cdef u64 HOLDER_MASK
cdef int HOLD_MS
cdef int NONE
cdef u64 TAKEN_MASK

cdef class WriterNumbers:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef object grace
    cdef object membership
    cdef readonly Clock clock
    cdef public int hold_ms
    cdef object claim
    cdef readonly u64 takes
    cdef readonly int number
    cdef readonly u64 word
    cdef u64 owner
    cdef u64 drops

    cpdef int forget(self) except -1
    cpdef int held(self) except? -1
    cdef int _look_again(self) except -1
