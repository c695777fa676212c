cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.object_layout cimport HEADER as OBJECT_HEADER, IMAGE_SIZE, KEY_MAX
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport area_of

cdef class Registers(LoggedObjects):
    cdef readonly u64 rest
    cdef bint in_place

    cpdef u64 size_of(self, bytes key, bytes value) except 0
    @cython.locals(least=u64, wanted=u64, size_class=int)
    cpdef u64 capacity(self, bytes key, bytes value)
    @cython.locals(sizes=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    @cython.locals(at=u64)
    cpdef u64 word_after_key(self, u64 index) except? 0
    cdef u64 _checksum(self, bytes key, u64 sizes)
    cpdef bint intact(self) except -1
