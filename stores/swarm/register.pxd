cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport checksum, hash64, u64, words_bytes
from limpet.shm.endpoint.words cimport *
from limpet.shm.replicas.replica_layout cimport ReplicaLayout
from limpet.stores.core.object_layout cimport IMAGE_SIZE, KEY_MAX
from limpet.stores.fusee.links cimport BUFFER, ENTRY_SIZE, KEY_OFFSET
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.swarm.layout cimport *

cpdef u64 rank_of(u64 word) noexcept
cpdef u64 stamp_of(u64 word) noexcept
cpdef u64 time_of(u64 word) noexcept
cpdef u64 writer_of(u64 word) noexcept
cpdef u64 row_of(u64 word) noexcept
cpdef u64 side_of(u64 word) noexcept
cpdef bint is_tombstone(u64 word) noexcept
cpdef u64 tuple_word(u64 time, u64 writer, u64 flags, u64 row, u64 side) noexcept
cpdef u64 placed(u64 word, u64 row, u64 side) noexcept

cdef u64 MASK
cdef u64 MIX

cpdef u64 area_of(u64 key_size) noexcept
cpdef int first_of(u64 reference, u64 replicas) noexcept

@cython.locals(least=u64, start=u64, line=u64)
cpdef int words_to_read(u64 base, int width, u64 length, u64 capacity) noexcept
@cython.locals(top=u64, index=Py_ssize_t)
cpdef u64 greatest(u64[::1] words, Py_ssize_t at, u64 ident, int width) noexcept
@cython.locals(same=bint)
cpdef bint is_final(u64 top, u64 least) noexcept
@cython.locals(length=u64, value=bytes, seed=u64)
cpdef value_in_place(u64[::1] words, Py_ssize_t at, Py_ssize_t count, u64 stamp, u64 ident)

@cython.final
cdef class Register:
    cdef readonly Heap heap
    cdef readonly ReplicaLayout placement
    cdef u64 entry
    cdef readonly int replicas
    cdef readonly int writers
    cdef readonly int buffers
    cdef readonly int locks
    cdef readonly int width
    cdef readonly int words_max
    cdef public int own
    cdef public bint asks
    cdef u64[::1] bases
    cdef public u64 reference
    cdef public u64 area
    cdef readonly u64 node
    cdef public u64 ident
    cdef public u64 capacity
    cdef public u64 length
    cdef public int first

    @cython.locals(row=u64, k=int)
    cpdef int select(self, u64 reference, u64 area) except -1
    @cython.locals(least=u64, room=u64)
    cpdef bint open(self, u64 reference, u64 sizes) except -1
    cdef int count(self, int k, int what) noexcept
    @cython.locals(size_class=u64, address=u64)
    cpdef u64 link_address(self) noexcept
    cpdef u64 address(self, int k) noexcept
    cpdef u64 metadata(self, int k, u64 row) noexcept
    cpdef u64 pointer(self, int k, u64 row, u64 side) noexcept
    cpdef u64 lock(self, int k, u64 writer) noexcept
    cpdef u64 size(self, u64 capacity) noexcept
    @cython.locals(there=u64, steps=u64)
    cpdef u64 beside(self, u64 reference, int k) except? 0

cdef class Registers(LoggedObjects):
    cdef readonly u64 rest
    cdef bint in_place

    cpdef u64 size_of(self, bytes key, bytes value) except 0
    @cython.locals(least=u64, wanted=u64, size_class=int)
    cpdef u64 capacity(self, bytes key, bytes value)
    @cython.locals(sizes=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    @cython.locals(at=u64)
    cpdef u64 ident(self, u64 area) except? 0
    cdef u64 _checksum(self, bytes key, u64 sizes)
    cpdef bint intact(self) except -1
