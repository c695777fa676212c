cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.status cimport VACANT_CLASS
from limpet.stores.fusee.links cimport ENTRY_SIZE, KEY_OFFSET
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.registers cimport Register
from limpet.stores.swarm.replica cimport Buffer, Buffers, Replica
from limpet.stores.swarm.words cimport is_tombstone, row_of, side_of, stamp_of

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
    cdef int place
    cdef u64 missing
    cdef public u64 retries

    cdef Replica at(self, int n)
    cdef bint stands_at(self, int k) noexcept
    @cython.locals(k=int, n=int, size=u64)
    cdef int prefetch(self, u64 reference, u64 area, u64 length, int first) except -1
    @cython.locals(k=int, replica=Replica)
    cdef int gather(self, int what, int wanted) except -1
    cdef int _outcome(self) noexcept
    @cython.locals(k=int, replica=Replica)
    cdef bint elect(self) except -1
    @cython.locals(n=int, replica=Replica)
    cdef int post(self, int what) except -1
    @cython.locals(n=int, wanted=int, replica=Replica)
    cpdef int arrived(self) except -1
    @cython.locals(known=int, n=int)
    cdef bint seen(self) noexcept
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
    @cython.locals(n=int, there=u64, turn=int, row=int, reference=u64, replica=Replica)
    cdef value_of(self, u64 word)
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
