cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport EXACTLY
from limpet.shm.endpoint.verbs cimport Endpoint, bit, u64, words_bytes, words_put
from limpet.shm.endpoint.words cimport ADDRESS_MASK, REFERENCE_MASK
from limpet.stores.core.status cimport VACANT_CLASS
from limpet.stores.fusee.growth cimport ReplicatedSplitter
from limpet.stores.fusee.links cimport DEATH, ENTRY_SIZE, OLD, PLACE_BITS
from limpet.stores.fusee.snapshot cimport ReplicatedSlot
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Place
from limpet.stores.race.layout cimport FROZEN, OBJECT_MASK
from limpet.stores.swarm.layout cimport (
    AGAIN, DONE, HEADER, IN_PLACE_MAX, IN_PLACE_WORDS, REFUSED, ROW, TIME_MAX, VERIFIED, WORDS,
)
from limpet.stores.swarm.max_register cimport MaxRegister, Protocol
from limpet.stores.swarm.register cimport (
    Register, Registers, area_of, first_of, is_tombstone, row_of, side_of, tuple_word,
)
from limpet.stores.swarm.replica cimport Buffer, Quorum, Replica
from limpet.stores.swarm.row cimport Row, Turns, Wanted

@cython.final
cdef class Recycling:
    cdef Client client
    cdef Endpoint endpoint
    cdef Heap heap
    cdef readonly Quorum quorum
    cdef readonly Register register

    @cython.locals(k=int, address=u64, ident=u64, buffer=u64)
    cdef int dispose_current(self) except -1
    @cython.locals(count=int, k=int, address=u64, sizes=u64)
    cpdef bint visit(self, u64 reference) except -1
    cpdef bint visit_home(self, u64 link_address) except -1
    @cython.locals(held=int, linked=bint)
    cpdef bint names(self, u64 reference, u64 link_address) except -1
    cdef bint _is_named(self, u64 reference, u64 link_address) except -1
    @cython.locals(replica=Replica, row=int, side=int)
    cdef bint _is_linked(self, u64 reference) except -1
    cpdef int dispose(self, u64 reference) except -1
    @cython.locals(
        replica=Replica, pointers=u64[::1], k=int, at=int, word=u64, reference=u64, last=u64
    )
    cpdef list buffers_named(self)
    @cython.locals(replica=Replica, row=int, found=u64)
    cpdef u64 rows_named(self) except? 0
    @cython.locals(replica=Replica, found=u64)
    cpdef u64 ident(self) except? 0

@cython.final
cdef class Unmapping:
    cdef ReplicatedTables tables
    cdef ReplicatedSplitter splitter
    cdef Client client
    cdef Endpoint endpoint
    cdef Recycling recycling
    cdef ReplicatedSlot slot

    @cython.locals(word=u64, reference=u64, held=int, won=bint, pointer=u64, offset=u64, address=u64)
    cdef bint unmap(self, Place place, u64 slot, u64 ticket) except -1
    @cython.locals(at=u64, winner=u64)
    cdef bint _vacate_alone(self, u64 word, u64 ticket) except -1

@cython.final
cdef class Tombstone:
    cdef MaxRegister max_register
    cdef Quorum quorum
    cdef Row row
    cdef Buffer buffer

    cdef int begin(self) except -1
    @cython.locals(quorum=Quorum, row=Row, writer=int, known=bint, word=u64, wrote=int)
    cdef int write(self, u64 ticket, int outcome) except -1

@cython.final
cdef class KeyRegister:
    cdef readonly Register place
    cdef readonly Quorum quorum
    cdef readonly Row row
    cdef readonly MaxRegister max_register
    cdef readonly Protocol protocol
    cdef readonly Tombstone tombstone
    cdef readonly Recycling recycling

    cpdef int select(
        self, u64 reference, u64 area, u64 ident, u64 capacity, u64 length, int first
    ) except -1
    cpdef int open(self, Registers logged, u64 reference) except -1

@cython.final
cdef class NewRegister:
    cdef readonly Allocator allocator
    cdef readonly ReplicatedTables tables
    cdef readonly Registers logged
    cdef readonly KeyRegister register
    cdef Register place
    cdef readonly u64 replicas
    cdef u64[::1] words
    cdef public u64 reference
    cdef readonly u64 word
    cdef readonly bint buffered

    @cython.locals(
        register=KeyRegister, writer=int, capacity=u64, size=u64, reference=u64, buffer=u64,
        area=u64, ident=u64, word=u64, wanted=Wanted, each=u64
    )
    cdef bint make(self, u64 node, bytes key, bytes value, bint asked) except -1
    @cython.locals(
        place=Register, words=u64[::1], first=Buffer, fits=bint, at=int, group=int, pointer=int, lock=int
    )
    cdef bytes _image(self, u64 word, u64 buffer, bytes value)
