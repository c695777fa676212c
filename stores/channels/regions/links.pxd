cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport u64

@cython.locals(ticket=u64, reference=u64)
cpdef int unlink(Client client, u64 link) except -1
@cython.locals(index=int)
cpdef int unlink_from(Client client, u64 link, u64 reference) except -1
