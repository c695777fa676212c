cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.clients.writer_numbers cimport WriterNumbers
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport LARGE_CLASS
from limpet.shm.replicas.replica_layout cimport ReplicaLayout
from limpet.stores.core.status cimport VACANT_CLASS
from limpet.stores.fusee.links cimport OLD
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport (
    Register, is_tombstone, placed, rank_of, row_of, side_of, stamp_of,
)
from limpet.stores.swarm.replica cimport Buffer, Buffers, Quorum, Replica

cdef int LOOKS
cdef int RESERVING
cdef u64 ROOMY
cdef u64 SMALL

@cython.final
cdef class Turns:
    cdef readonly WriterNumbers numbers
    cdef u64 takes
    cdef u64 number
    cdef bint unnoted
    cdef u64[::1] last
    cdef u64[::1] looks
    cdef readonly object idle

    cdef u64 current(self) except? 0
    cdef int renew(self) except -1
    cpdef int doubt(self, u64 node) except -1
    cdef bint knows(self, u64 word) noexcept

@cython.final
cdef class Wanted:
    cdef public u64 node
    cdef public u64 size
    cdef public u64 also
    cdef public u64 lent
    cdef public bint exactly

@cython.final
cdef class Row:
    cdef Client client
    cdef WriterNumbers numbers
    cdef Endpoint endpoint
    cdef Heap heap
    cdef Allocator allocator
    cdef object view
    cdef readonly Turns turns
    cdef Quorum quorum
    cdef Register register
    cdef list replicas
    cdef u64[::1] mine
    cdef Buffers buffers
    cdef int count
    cdef readonly int writer
    cdef public int side
    cdef public bint known
    cdef bint wrote
    cdef bint found
    cdef int unused
    cdef u64[::1] names
    cdef Buffer buffer
    cdef Buffer spare
    cdef readonly Wanted wanted

    @cython.locals(k=int)
    cpdef int forget(self) except -1
    @cython.locals(number=int)
    cdef bint is_writer(self) except? False
    @cython.locals(used=int, n=int, k=int, side=int, word=u64)
    cdef bint take_metadata(self) except -1
    cdef bint _are_anothers(self) noexcept
    @cython.locals(agreed=u64, ident=u64, n=int, there=u64, replica=Replica)
    cdef u64 _agreed(self, int side) except? 0
    @cython.locals(k=int, n=int, replica=Replica)
    cdef int take_words(self) except -1
    @cython.locals(n=int, replica=Replica)
    cdef int renew_words(self) except -1
    @cython.locals(n=int)
    cdef bint infer(self) except -1
    @cython.locals(k=int)
    cdef int is_new(self, u64 word) except -1
    @cython.locals(k=int)
    cdef int recall(self, u64[::1] words, long long at) except -1
    @cython.locals(register=Register, shared=bint)
    cdef int _ask(self) except -1
    @cython.locals(k=int, known=bint)
    cdef int note(self, u64[::1] words, long long at) except -1
    @cython.locals(reference=u64)
    cdef bint suits(self, u64 size) except -1
    cdef bint is_named(self) noexcept
    @cython.locals(size_class=int, room=u64)
    cdef bint _fits(self, u64 reference, u64 size) except -1
    @cython.locals(reference=u64)
    cdef int take_turn(self, Buffer buffer, u64 size) except -2
    @cython.locals(reference=u64, scope=bint)
    cdef int clear_side(self) except -1
    @cython.locals(wanted=Wanted, placement=ReplicaLayout, reference=u64)
    cdef int acquire(self, Buffer buffer, u64 size) except -2
    cdef bint _is_loan(self, u64 size) except -1
    @cython.locals(k=int, address=u64)
    cdef int prefetch(self, u64 size) except -1
    cdef int retarget(self, int held) except -1
    @cython.locals(n=int, stands=bint, replica=Replica)
    cdef bint keep(self, int held, Buffer buffer) except -1
    cdef int refuse(self, int held) except -1
    @cython.locals(
        buffer=Buffer, side=int, other=u64, stands=bint, written=int, k=int, short=bint
    )
    cdef int end(self, u64 w, int held) except -1
    cpdef int reserve(self) except -1
    @cython.locals(looks=u64[::1], free=bint)
    cdef bint is_short(self, u64 node) except -1
    @cython.locals(lent=bint)
    cdef bint lend(self, Buffer buffer) except -1
    cdef bint may_lend(self, u64 size) noexcept
    @cython.locals(held=int, k=int, side=int, at=u64)
    cdef int give_up(self, int seen, u64 row, u64 reference) except -1
    @cython.locals(n=int, replica=Replica, reference=u64)
    cdef int make_room(self, u64 w) except -1
    @cython.locals(scope=bint, own=u64, k=int, word=u64, stands=u64, replica=Replica)
    cdef int repair(self) except -1
    @cython.locals(quorum=Quorum, own=u64, n=int, word=u64, missing=int, scope=bint)
    cpdef u64 settle(self, int writer, u64 before) except? 0
    @cython.locals(missing=int, n=int, there=bint, replica=Replica)
    cdef int _missing_in_place(self, u64 own) except -1
    @cython.locals(n=int, before=u64, at=u64, replica=Replica)
    cdef bint _put_in_place(self, u64 own, int missing) except -1
    @cython.locals(top=u64)
    cdef u64 _needed(self, u64 own) except? 0
    @cython.locals(k=int, at=u64, replica=Replica)
    cdef int _name_once(self, u64 own, u64 stands) except -1
    @cython.locals(k=int, word=u64, leads=bint, side=int, there=u64, at=u64, replica=Replica)
    cdef int _drop_numbers(self) except -1
    @cython.locals(k=int, side=int, reference=u64, replica=Replica)
    cdef int _give_up_junk(self, u64 stands) except -1
    @cython.locals(k=int, word=u64, replica=Replica)
    cdef bint _is_led_to(self, u64 reference) except -1
    @cython.locals(reference=u64, k=int, word=u64, first=int, done=int, moved=bint, replica=Replica)
    cdef u64 _spread(self, u64 own) except? 0
    @cython.locals(at=u64, found=u64, turn=int, side=u64, word=u64)
    cdef bint move(self, Replica replica, u64 before, u64 own, Buffer buffer) except -1
