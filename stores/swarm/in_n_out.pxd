cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64, words_bytes
from limpet.stores.swarm.words cimport rank_of, row_of, side_of, stamp_of

cdef u64 ADDRESS_MASK
cdef u64 BUFFER
cdef u64 HEADER
cdef int HEADER_WORDS
cdef u64 IMAGE_SIZE
cdef u64 IN_PLACE_MAX
cdef int IN_PLACE_WORDS
cdef int LARGE_CLASS
cdef u64 MASK
cdef int NODE_SHIFT
cdef int REPLICAS_ROW
cdef u64 REPLICATED
cdef int STAMP_SHIFT
cdef u64 VACANT_CLASS

cdef int AGAIN
cdef int DONE
cdef int REFUSED

cdef class InNOut:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly Allocator allocator
    cdef readonly u64 nodes
    cdef u64 node
    cdef u64 entry
    cdef readonly int replicas
    cdef readonly int writers
    cdef readonly int buffers
    cdef int pointers
    cdef readonly int width
    cdef int stride
    cdef u64[::1] front
    cdef u64[::1] image
    cdef u64[::1] header
    cdef u64[::1] in_place
    cdef u64[::1] bases
    cdef u64[::1] order
    cdef int read
    cdef u64[::1] mine
    cdef public u64 reference
    cdef public u64 ident
    cdef public u64 area
    cdef public u64 capacity
    cdef int writer
    cdef public int side
    cdef u64 buffer
    cdef bint published
    cdef int place
    cdef bytes value

    @cython.locals(node=u64, row=u64, k=int, there=u64)
    cpdef int turn_to(self, u64 reference, u64 area) except -1
    @cython.locals(size_class=u64, address=u64)
    cpdef u64 home(self) noexcept
    cpdef u64 pointer(self, int k, u64 row, u64 side) noexcept
    cpdef u64 lock(self, int k, u64 writer) noexcept
    cpdef u64 size(self, u64 capacity) noexcept
    @cython.locals(count=int)
    cpdef int read_front(self, int k, bint whole) except -1
    @cython.locals(k=int, index=int, there=bint)
    cpdef int read_all(self) except -1
    cpdef u64 word(self, int k, int index) noexcept
    cpdef u64 address(self, int k) noexcept
    @cython.locals(word=u64)
    cpdef u64 named(self, int k, u64 row, u64 side) noexcept
    cdef int prepare(self, u64 word, bytes value) except -1
    @cython.locals(there=u64, steps=u64)
    cpdef u64 beside(self, u64 reference, int k) except? 0
    @cython.locals(is_tombstone=bint, address=u64, other=int)
    cdef int write_buffer(self, int k) except -1
    cdef int _write_older(self, u64 address) except -1
    @cython.locals(steps=int, address=u64)
    cpdef read_buffer(self, u64 reference, u64 stamp, int first)
    @cython.locals(size_class=int, size=u64, length=u64, value=bytes, seed=u64)
    cdef _read_buffer_at(self, u64 reference, u64 address, u64 stamp)
    cpdef bytes begin(self, u64 word, u64 buffer, bytes value)
    @cython.locals(address=u64)
    cdef int write_in_place(self) except -1
    @cython.locals(at=int, length=u64, value=bytes, seed=u64)
    cdef read_in_place(self, u64 stamp)
    @cython.locals(found=u64)
    cdef int put(self, int k, u64 word) except -1
    @cython.locals(expected=u64, found=u64, at=u64)
    cdef int max(self, int k, u64 word) except -1
    @cython.locals(at=u64, found=u64)
    cdef bint verify(self, int k, u64 word) except -1
