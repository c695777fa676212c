cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, checksum, u64, words_bytes
from limpet.stores.status cimport VACANT_CLASS
from limpet.stores.swarm.buffers cimport Buffer, Buffers
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport Register
from limpet.stores.swarm.words cimport rank_of, row_of, side_of, stamp_of

cdef u64 MASK

@cython.final
cdef class Replica:
    cdef Endpoint endpoint
    cdef Register register
    cdef Buffers buffers
    cdef readonly int k
    cdef u64[::1] front
    cdef u64[::1] in_place
    cdef readonly u64[::1] tops
    cdef readonly u64[::1] mine
    cdef bint posted
    cdef u64 pointed
    cdef u64 changed

    cdef bint failed(self) noexcept
    @cython.locals(count=int)
    cpdef int read(self, bint whole) except -1
    @cython.locals(count=int)
    cdef int post(self, bint whole) except -1
    @cython.locals(there=bint, index=int)
    cpdef int read_if_there(self) except -1
    cpdef u64 word(self, int index) noexcept
    cpdef u64 metadata(self, u64 row) noexcept
    cpdef u64 pointer(self, u64 row, u64 side) noexcept
    @cython.locals(word=u64)
    cpdef u64 named(self, u64 row, u64 side) noexcept
    cdef bint is_taken_for_it(self) noexcept
    @cython.locals(top=u64, index=int)
    cdef bint note_top(self) noexcept
    @cython.locals(address=u64)
    cdef bint write_in_place(self, Buffer buffer) except -1
    @cython.locals(at=int, length=u64, value=bytes, seed=u64)
    cdef read_in_place(self, u64 stamp)
    @cython.locals(found=u64)
    cdef int write(self, u64 word, Buffer buffer) except -1
    @cython.locals(expected=u64, found=u64)
    cdef int max(self, u64 word) except -1
    @cython.locals(row=u64)
    cdef int post_write(self, u64 word, Buffer buffer) except -1
    @cython.locals(found=u64)
    cpdef int written(self, u64 word, Buffer buffer) except -1
    @cython.locals(found=u64)
    cdef bint verify(self, u64 word) except -1
    cdef bint stands(self) except -1
