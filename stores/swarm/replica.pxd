cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, bit, checksum, u64, words_bytes
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport IMAGE_SIZE
from limpet.stores.core.status cimport VACANT_CLASS
from limpet.stores.fusee.links cimport ENTRY_SIZE, KEY_OFFSET
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport (
    Register, greatest, is_final, is_tombstone, rank_of, row_of, side_of, stamp_of, value_in_place,
)

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
    @cython.locals(size_class=int, size=u64, most=u64, count=int)
    cdef _read_at(self, u64 reference, u64 address, u64 stamp, u64 length)
    @cython.locals(seed=u64)
    cdef _checked(self, bytes value)
    @cython.locals(address=u64)
    cdef bint post_read(self, u64 reference, int k, u64 length) except -1
    cdef arrived(self, u64 stamp, u64 length)

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
    @cython.locals(register=Register)
    cdef bint note_top(self) noexcept
    @cython.locals(index=int)
    cdef int take(self, u64[::1] words, Py_ssize_t start, int count) except -1
    @cython.locals(fits=bint, address=u64, value=bytes)
    cdef bint write_in_place(self, Buffer buffer) except -1
    @cython.locals(at=int, length=u64, end=int)
    cdef read_in_place(self, u64 stamp)
    @cython.locals(at=int, length=u64)
    cdef bint post_buffer(self, u64 stamp) except -1
    @cython.locals(at=int)
    cdef fetch_in_place(self, u64 stamp)
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

@cython.final
cdef class Quorum:
    cdef Endpoint endpoint
    cdef readonly object view
    cdef readonly str owner
    cdef readonly Register register
    cdef readonly Buffers buffers
    cdef readonly int count
    cdef readonly int majority
    cdef readonly list replicas
    cdef readonly u64[::1] tops
    cdef readonly u64[::1] mine
    cdef u64[::1] order
    cdef int read
    cdef int valid
    cdef int there
    cdef readonly u64 top
    cdef u64 least
    cdef int place
    cdef u64 missing
    cdef public u64 retries

    cdef Replica at(self, int n)
    cdef bint stands_at(self, int k) noexcept
    @cython.locals(k=int, heap=Heap, row=u64, size=u64, address=u64)
    cdef int prefetch(self, u64 reference, u64 area, u64 length, int first) except -1
    @cython.locals(k=int, looked=int, replica=Replica)
    cdef int gather(self, int what, int wanted) except -1
    cdef int _outcome(self) noexcept
    @cython.locals(k=int, replica=Replica)
    cdef bint elect(self) except -1
    @cython.locals(n=int, replica=Replica)
    cdef int post(self, int what) except -1
    @cython.locals(n=int, wanted=int, replica=Replica)
    cpdef int arrived(self) except -1
    cdef bint is_final(self) noexcept
    @cython.locals(known=int, n=int)
    cdef bint seen(self) noexcept
    @cython.locals(top=u64)
    cdef int _note(self, Replica replica) except -1
    cpdef int read_all(self) except -1
    @cython.locals(k=int, replica=Replica)
    cdef int read_words(self) except -1
    @cython.locals(k=int, replica=Replica)
    cdef int read_pointers(self) except -1
    @cython.locals(least=u64, found=int, n=int)
    cdef int count_at_least(self, u64 word) except -1
    @cython.locals(found=int, n=int)
    cdef int count_above(self, u64 word) except -1
    @cython.locals(n=int)
    cdef int where(self, u64 word) except -1
    @cython.locals(
        n=int, there=u64, turn=int, row=int, reference=u64, replica=Replica
    )
    cdef value_of(self, u64 word)
    @cython.locals(replica=Replica)
    cdef _value_elsewhere(self, u64 word)
    @cython.locals(replica=Replica)
    cdef bint post_value(self, u64 word) except -1
    @cython.locals(replica=Replica)
    cdef value_arrived(self, u64 word)
    @cython.locals(n=int, missing=bint, replica=Replica)
    cdef int need_row(self, int row) except -1
    @cython.locals(row=int, word=u64, is_number=bint, replica=Replica)
    cpdef u64 ticket(self) except? 0
    @cython.locals(replica=Replica)
    cdef int write_in_place(self, Buffer buffer) except -1
    @cython.locals(k=int, replica=Replica)
    cdef bint max_again(self, int pending, u64 word) except -1
    cdef int look_again(self, u64 word, u64 attempt) except -1
    cdef int wait_again(self, u64 attempt, u64 word, str what) except -1
    @cython.locals(k=int, at=u64, size=u64)
    cpdef bytes key(self)
