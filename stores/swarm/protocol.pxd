from limpet.shm.clients.unique_ids cimport Clock
from limpet.shm.endpoint.verbs cimport Endpoint
from limpet.stores.swarm.max_register cimport MaxRegister
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.register cimport Register
from limpet.stores.swarm.row cimport Row

cdef class Protocol:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row
    cdef Register register
    cdef Endpoint endpoint
    cdef readonly Clock clock
    cdef readonly bytes result

    cpdef int read(self) except -1
    cpdef int write(self, bytes value) except -1
