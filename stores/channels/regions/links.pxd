cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.phases cimport cas_alone, load_alone

@cython.locals(reference=u64)
cpdef int unlink(Client client, u64 link) except -1
@cython.locals(index=int)
cpdef int unlink_from(Client client, u64 link, u64 reference) except -1
