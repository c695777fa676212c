cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64

cdef u64 CLIENT_SLOTS
cdef int DYING
cdef u64 EPOCH
cdef u64 ERA
cdef int ERA_SHIFT
cdef int LIVE
cdef u64 PIN
cdef int PIN_SHIFT
cdef u64 SLOTS_USED
cdef u64 SLOT_SIZE

@cython.locals(found=list, slot=u64, at=u64, word=u64, era=u64, pin=u64)
cpdef list pins(Endpoint endpoint)
