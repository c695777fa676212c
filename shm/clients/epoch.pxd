cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64

@cython.locals(found=list, used=u64, read=list, slot=u64, at=u64, word=u64, era=u64, pin=u64)
cpdef list pins(Endpoint endpoint)
