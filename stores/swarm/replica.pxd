cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.verbs cimport Endpoint, bit, checksum, u64, words_bytes
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport IMAGE_SIZE
from limpet.stores.core.status cimport VACANT_CLASS
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.registers cimport Register
from limpet.stores.swarm.words cimport rank_of, row_of, side_of, stamp_of

cdef u64 MASK

@cython.final
cdef class Buffer:
    cdef u64 reference
    cdef bint published
    cdef bint named
    cdef bint strayed
    cdef bint doubtful
    cdef int ahead
    cdef bytes value
    cdef u64[::1] header

    cdef int use(self, u64 reference, bint named) noexcept
    cdef int prepare(self, u64 ident, u64 word, bytes value) except -1
    cdef int copy_of(self, u64 reference, u64 ident, u64 word, bytes value) except -1

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
    @cython.locals(address=u64)
    cdef int post_if(self, u64 ticket, Buffer buffer, int k) except -1
    cdef int _write_older(self, Buffer buffer, u64 address) except -1
    @cython.locals(k=int)
    cdef int write_first(self, Buffer buffer) except -1
    @cython.locals(replicas=int, steps=int, address=u64)
    cdef read(self, u64 reference, u64 stamp, int first, u64 length)
    @cython.locals(size_class=int, size=u64, most=u64, count=int, value=bytes, seed=u64)
    cdef _read_at(self, u64 reference, u64 address, u64 stamp, u64 length)

@cython.final
cdef class Replica:
    cdef Endpoint endpoint
    cdef Register register
    cdef Buffers buffers
    cdef readonly int k
    cdef u64[::1] front
    cdef int count
    cdef u64[::1] pointers
    cdef u64 rows
    cdef u64[::1] in_place
    cdef readonly u64[::1] tops
    cdef readonly u64[::1] mine
    cdef bint posted
    cdef u64 pointed
    cdef u64 changed

    cdef bint failed(self) noexcept
    cpdef int read(self, int what) except -1
    cdef int post(self, int what) except -1
    @cython.locals(row=int, at=u64)
    cdef int _post_row(self, int what) except -1
    @cython.locals(at=u64)
    cdef bint read_row(self, int row) except -1
    @cython.locals(there=bint, index=int)
    cpdef int read_if_there(self) except -1
    @cython.locals(count=int, there=bint, at=u64, index=int)
    cdef int read_pointers(self) except -1
    cpdef u64 word(self, int index) noexcept
    cpdef u64 metadata(self, u64 row) noexcept
    cpdef u64 pointer(self, u64 row, u64 side) except? 0
    @cython.locals(word=u64)
    cpdef u64 named(self, u64 row, u64 side) except? 0
    cdef bint is_taken_for_it(self) noexcept
    @cython.locals(top=u64, index=int)
    cdef bint note_top(self) noexcept
    @cython.locals(fits=bint, address=u64, value=bytes)
    cdef bint write_in_place(self, Buffer buffer) except -1
    @cython.locals(at=int, length=u64, end=int, value=bytes, seed=u64)
    cdef read_in_place(self, u64 stamp)
    @cython.locals(at=int, address=u64)
    cdef int _read_rest(self, int end) except -1
    @cython.locals(found=u64)
    cdef int write(self, u64 word, Buffer buffer) except -1
    @cython.locals(expected=u64, found=u64)
    cdef int max(self, u64 word) except -1
    @cython.locals(row=u64, ident=u64, at=u64)
    cdef int post_write(self, u64 word, Buffer buffer) except -1
    @cython.locals(found=u64)
    cpdef int written(self, u64 word, Buffer buffer) except -1
    @cython.locals(found=u64)
    cdef bint verify(self, u64 word) except -1
    cdef bint stands(self) except -1
