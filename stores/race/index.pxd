cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, lowest_bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.layout cimport (
    DIRECTORY_ENTRY, FROZEN, MASK, MIX_DIRECTORY, MIX_FIRST, MIX_SECOND, OBJECT_MASK, SLOTS,
)
from limpet.stores.race.parameters cimport *

cdef u64 PREFETCH_SIZE

cpdef bint is_vacant(u64 word) noexcept
cpdef bint is_valid(u64 word) noexcept
cpdef bint is_frozen(u64 word) noexcept
cpdef bint is_split(u64 pointer) noexcept

@cython.final
cdef class Place:
    cdef public u64 hash
    cdef public u64 table
    cdef public u64 depth
    cdef public u64 number
    cdef public u64 entry
    cdef public u64 pointer
    cdef public u64 base
    cdef public u64 first
    cdef public u64 second
    cdef public bint posted
    cdef public u64 ticket
    cdef public u64 word
    cdef public u64 busy
    cdef public u64 head
    cdef public u64 backups

@cython.final
cdef class Remembered:
    cdef readonly u64 deepest
    cdef unsigned char[::1] depths
    cdef u64[::1] known

cdef class Holds:
    cdef readonly str name

    cpdef u64 held(self, Place place, u64 slot, u64 word, bytes key) except? 0
    cpdef u64 settled(self, u64 slot, u64 word) except? 0

cdef class Index:
    cdef readonly str name
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef readonly Objects objects
    cdef readonly Holds holds
    cdef readonly u64 groups
    cdef readonly u64 subtables
    cdef readonly int bucket_size
    cdef readonly u64 subtable_size
    cdef readonly u64 directory_size
    cdef readonly u64 depth_first
    cdef readonly u64 depth_max
    cdef readonly u64 entries
    cdef readonly u64[::1] tables
    cdef readonly u64[::1] words
    cdef u64[::1] tagged
    cdef readonly Remembered seen

    cdef int choose(self, Place place, bytes key) except -1
    cdef int post_choose(self, Place place, bytes key) except -1
    @cython.locals(pointer=u64)
    cdef int locate(self, Place place, u64 hashed) except -1
    @cython.locals(pointer=u64)
    cdef int post_locate(self, Place place, u64 hashed) except -1
    cdef int agree(self) except -1
    cdef int agree_to_read(self) except -1
    cdef bint post_unpinned(self, Place place, u64 hashed) except -1
    cdef bint read_unpinned(self, Place place) except -1
    @cython.final
    @cython.locals(pointer=u64)
    cdef bint confirm(self, Place place) except -1
    @cython.final
    cdef u64 entry_read(self, Place place) except? 0
    cdef bint go_on(self, Place place, u64 pointer) except -1
    @cython.final
    @cython.locals(table=u64, prefix=u64, depth=u64, number=u64)
    cdef int _aim(self, Place place, u64 hashed) except -1
    @cython.final
    @cython.locals(prefix=u64)
    cdef int _descend(self, Place place) except -1
    @cython.final
    @cython.locals(index=u64, other=bint)
    cdef bint _follow(self, Place place, u64 pointer) except -1
    @cython.final
    @cython.locals(combined=u64, first=u64, second=u64)
    cdef int _locate_in(self, Place place, u64 base) except -1
    cpdef u64 table_of(self, bytes key) except? 0
    cpdef u64 node_of(self, u64 table) noexcept
    cdef u64 base_of(self, u64 pointer) noexcept
    @cython.final
    cdef u64 prefix(self, u64 hashed) noexcept
    @cython.final
    @cython.locals(deepest=u64)
    cdef u64 _remembered(self, u64 table, u64 prefix) noexcept
    @cython.final
    @cython.locals(seen=Remembered)
    cdef int _remember_deeper(self) except -1
    @cython.final
    cdef u64 entry(self, u64 table, u64 number) noexcept
    cpdef u64 below(self, u64 number) except 0
    @cython.final
    cdef int read_buckets(self, Place place) except -1
    @cython.final
    cdef int read_phase(self, Place place) except -1
    @cython.final
    cdef int post_row(self, Place place, int row) except -1
    @cython.final
    cdef int row_arrived(self, Place place, int row) except -1
    @cython.final
    cdef int read_row(self, Place place, int row) except -1
    @cython.final
    @cython.locals(index=int)
    cdef int _empty_row(self, int row) except -1
    @cython.final
    cdef u64 find(self, Place place, bytes key) except? 0
    @cython.final
    @cython.locals(left=u64, index=int, word=u64, reference=u64, found=bint)
    cdef u64 match(self, Place place, bytes key, int row, bint phases) except? 0
    @cython.final
    @cython.locals(left=u64, found=u64, word=u64, size=u64)
    cdef u64 candidates(self, int row) except? 0
    @cython.final
    cdef u64 address(self, Place place, int index) noexcept
    @cython.final
    cdef int index_of(self, Place place, u64 slot) noexcept
    cpdef int room(self, Place place) except -2
    @cython.final
    @cython.locals(
        best=int, most=int, side=int, main=int, empty=int, last=int, index=int, start=u64, words=int
    )
    cdef int room_in(self, Place place, int row) except -2
    @cython.locals(index=int, frozen=int)
    cpdef bint any_frozen(self) except -1
    cpdef int depend(self, Place place, u64 slot) except -1
