cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport CHANGES
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.transactions.layout cimport *

@cython.locals(endpoint=Endpoint, at=u64, count=u64)
cpdef int begin_change(Client client) except -1
@cython.locals(endpoint=Endpoint, at=u64, count=u64)
cpdef int end_change(Client client) except -1
@cython.locals(endpoint=Endpoint, used=u64, total=u64, odd=u64, at=u64, count=u64, _=u64)
cpdef u64 changes(Client client, u64 most) except? 0
