cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, checksum, u64, words_bytes
from limpet.shm.endpoint.words cimport *
from limpet.stores.object_layout cimport IMAGE_SIZE
from limpet.stores.status cimport VACANT_CLASS
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport Register
from limpet.stores.swarm.words cimport stamp_of

cdef u64 MASK

@cython.final
cdef class Buffer:
    cdef u64 reference
    cdef bint published
    cdef bint doubtful
    cdef int ahead
    cdef bytes value
    cdef u64[::1] header

    cdef int prepare(self, u64 ident, u64 word, bytes value) except -1

@cython.final
cdef class Buffers:
    cdef Endpoint endpoint
    cdef Register register
    cdef Heap heap
    cdef u64[::1] image

    @cython.locals(is_tombstone=bint, address=u64, other=int, value=bytes)
    cdef int write(self, Buffer buffer, int k) except -1
    @cython.locals(address=u64)
    cdef int post(self, Buffer buffer, int k) except -1
    cdef int _write_older(self, Buffer buffer, u64 address) except -1
    @cython.locals(k=int)
    cdef int write_first(self, Buffer buffer) except -1
    @cython.locals(replicas=int, steps=int, address=u64)
    cdef read(self, u64 reference, u64 stamp, int first)
    @cython.locals(size_class=int, size=u64, length=u64, value=bytes, seed=u64)
    cdef _read_at(self, u64 reference, u64 address, u64 stamp)
    @cython.locals(address=u64)
    cdef bint is_of(self, u64 reference, int k, u64 stamp) except -1
