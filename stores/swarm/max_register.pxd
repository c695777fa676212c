cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.recycling cimport Recycling
from limpet.stores.swarm.words cimport (
    is_tombstone, placed, rank_of, row_of, side_of, stamp_of,
)

cdef u64 ATTEMPTS_MAX
cdef int AGAIN
cdef int DELETED
cdef int DONE
cdef int FIXED
cdef int GONE
cdef u64 HEADER
cdef int INCARNATION_BITS
cdef int IN_PLACE_WORDS
cdef int NODE_SHIFT
cdef int REFUSED
cdef int REPLICAS_ROW
cdef u64 VACANT_CLASS
cdef u64 WRITER_MASK
cdef u64 UNDECIDED

cdef class MaxRegister(Recycling):
    cdef readonly object view
    cdef readonly int majority
    cdef u64[::1] tops
    cdef int valid
    cdef u64 top
    cdef readonly int first
    cdef public bint known
    cdef readonly bint wrote
    cdef public u64 needed
    cdef public u64 needed_on
    cdef public u64 needed_also
    cdef public u64 retries
    cdef public str owner

    cpdef int turn(self, u64 reference, u64 area, u64 ident, u64 capacity, int first) except -1
    @cython.locals(k=int, n=int, size=u64)
    cdef int foresee(self, u64 reference, u64 area, u64 capacity, int first) except -1
    @cython.locals(k=int)
    cdef int recall(self, u64[::1] words, long long at) except -1
    @cython.locals(k=int)
    cdef int is_new(self, u64 word) except -1
    @cython.locals(k=int)
    cdef int note(self, u64[::1] words, long long at) except -1
    cdef int identify(self) except -1
    cdef bint is_writer(self) noexcept
    @cython.locals(k=int)
    cdef int gather(self, bint whole, int wanted) except -1
    @cython.locals(at=int, top=u64, index=int)
    cdef int _note(self, int k) except -1
    @cython.locals(index=int, n=int, k=int, at=int, left=bint, right=bint)
    cdef bint learn(self) except -1
    @cython.locals(least=u64, found=int, n=int)
    cdef int count(self, u64 word) except -1
    @cython.locals(found=int, n=int)
    cdef int above(self, u64 word) except -1
    @cython.locals(n=int)
    cdef int where(self, u64 word) except -1
    @cython.locals(n=int, k=int, there=u64, turn=int, row=u64, reference=u64)
    cdef value_of(self, u64 word)
    cdef int look_again(self, u64 word, u64 attempt) except -1
    cdef int wait_again(self, u64 attempt, u64 word, str what) except -1
    cdef int acquire(self, u64 size) except -2
    @cython.locals(k=int, n=int)
    cdef int expect(self, u64 size) except -1
    cdef int aim(self, int held) except -1
    @cython.locals(n=int, stands=bint)
    cdef int keep(self, int held) except -1
    cdef bint _stands(self, int k) except -1
    @cython.locals(done=int, pending=int, k=int, outcome=int)
    cdef int write(self, u64 word) except -1
    @cython.locals(k=int)
    cdef bint _max_again(self, int pending, u64 word) except -1
    @cython.locals(lane=bint, own=u64, k=int, word=u64, stands=u64)
    cdef int clear_row(self) except -1
    cdef u64 _needed(self, u64 own) except? 0
    @cython.locals(k=int, at=u64)
    cdef int _name_once(self, u64 own, u64 stands) except -1
    cdef u64 _own_word(self, int k) noexcept
    @cython.locals(k=int, word=u64, leads=bint, side=int, there=u64)
    cdef int _drop_numbers(self) except -1
    @cython.locals(k=int, side=int, reference=u64)
    cdef int _give_up_junk(self, u64 stands) except -1
    @cython.locals(k=int, word=u64)
    cdef bint _is_led_to(self, u64 reference) except -1
    @cython.locals(reference=u64, k=int, word=u64, before=u64, first=int, done=int, moved=bint)
    cdef u64 _spread(self, u64 own) except? 0
    @cython.locals(at=u64, found=u64, turn=int, side=u64, word=u64)
    cdef bint _move(self, int k, u64 before, u64 own) except -1
