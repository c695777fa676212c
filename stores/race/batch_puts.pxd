cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.race.batch cimport Batch
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.slots cimport Slots
from limpet.stores.records cimport Objects

cdef u64 ADDRESS_MASK
cdef u64 FROZEN
cdef u64 HELD
cdef u64 HELD_MASK
cdef int LEFT
cdef int READY
cdef u64 REFERENCE_MASK
cdef u64 TENTATIVE

cdef class BatchPuts:
    cdef readonly Index index
    cdef readonly Objects objects
    cdef readonly Slots slots
    cdef readonly Allocator allocator
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly int replicas
    cdef public Batch batch

    @cython.locals(batch=Batch, end=Py_ssize_t)
    cdef Py_ssize_t put(self, Place place, pairs, Py_ssize_t start, list left) except -1
    @cython.locals(index=Index, row=int, reads=bint, slot=u64, word=u64, room=int)
    cpdef int find_all(self, Place place, Batch batch) except -1
    @cython.locals(
        client=Client, allocator=Allocator, slots=Slots, row=int, count=int, reference=u64,
        link=u64, old=u64,
    )
    cpdef int make_all(self, Batch batch) except -1
    @cython.locals(row=int)
    cpdef int write_all(self, Batch batch) except -1
