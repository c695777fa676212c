cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport RECORDS, RECORDS_COUNT
from limpet.shm.endpoint.states cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.shm.replicas.replica_layout cimport ReplicaLayout

cdef u64 MASK
cdef u64 MULTIPLES
cdef u64 NODE_BITS
cdef u64 SMALL_SIZE
cdef int LOOKS
cdef int GATHERED
cdef u64 WORD_BITS

cdef class Heap:
    cdef readonly Endpoint endpoint
    cdef readonly object layout
    cdef readonly ReplicaLayout placement
    cdef readonly u64[::1] sizes
    cdef unsigned char[::1] small
    cdef readonly u64 class_count
    cdef readonly u64 page_class
    cdef readonly u64 paged
    cdef readonly u64[::1] runs
    cdef readonly u64 blocks
    cdef readonly u64 block_size
    cdef readonly u64 block_count
    cdef readonly u64 bitmaps
    cdef readonly u64 bitmap_size
    cdef readonly u64 table
    cdef u64 first
    cdef u64[::1] ends
    cdef readonly u64[::1] steps
    cdef readonly u64[::1] bit_steps
    cdef u64[::1] gathered
    cdef u64[::1] gathered_words
    cdef u64[::1] gathered_masks
    cdef public object contents

    @cython.locals(blocks=u64)
    cpdef u64 value_max(self, u64 replicas) noexcept
    @cython.locals(low=int, high=int, middle=int)
    cpdef int size_class(self, u64 size) except -1
    cpdef u64 block_class(self, u64 size_class) noexcept
    cpdef u64 object_count(self, int size_class) except 0
    cpdef u64 table_word(self, u64 node, u64 block) noexcept
    cpdef u64 bitmap(self, u64 node, u64 block) noexcept
    @cython.locals(within=u64, offset=u64)
    cpdef u64 reference(self, u64 node, u64 block, u64 size_class, u64 index) noexcept
    cpdef u64 block_of(self, u64 reference) noexcept
    @cython.locals(pages=u64, past=u64)
    cpdef u64 last_block_of(self, u64 reference) noexcept
    @cython.locals(size_class=int, within=u64)
    cpdef u64 index_of(self, u64 reference) noexcept
    cpdef u64 replicas(self, u64 reference) noexcept
    cpdef u64 replica(self, u64 reference, u64 k) except? 0
    @cython.locals(node=u64, end=u64)
    cpdef u64 row(self, u64 reference) except? 0
    @cython.final
    @cython.locals(offset=u64, block=u64, size_class=u64, index=u64, word=u64)
    cdef u64 _used_bits(self, u64 reference) noexcept
    @cython.locals(
        size_class=u64, offset=u64, block=u64, replicas=u64, within=u64, size=u64, last=u64, page=u64
    )
    cpdef bint plausible(self, u64 reference) except -1
    @cython.locals(found=u64, at=u64)
    cpdef bint used_at(self, u64 reference, u64 k) except -1
    @cython.locals(last=u64, k=u64)
    cpdef bint used(self, u64 reference) except -1
    @cython.locals(found=u64, primary=u64, mask=u64, scope=bint)
    cpdef int take(self, u64 reference) except -1
    @cython.locals(start=int, words=int, index=int, scope=bint)
    cpdef int take_all(self, u64[::1] references, int count) except -1
    @cython.final
    @cython.locals(words=int, stop=int, index=int, row=int, end=int, reference=u64, found=u64, at=u64)
    cdef int _gather(self, u64[::1] references, int start, int count, bint take) except -1
    @cython.final
    cdef int _take_word(self, u64 reference, u64 primary, u64 mask) except -1
    @cython.final
    @cython.locals(at=u64, first=u64, left=u64, count=u64, mask=u64)
    cdef int _change_run(self, u64 reference, u64 found, bint take) except -1
    @cython.locals(row=u64, k=u64, at=u64)
    cdef int _take_backups(self, u64 reference, u64 primary, u64 mask) except -1
    @cython.locals(found=u64, at=u64, first=u64, left=u64, row=u64, count=u64, mask=u64, k=u64, word=u64)
    cpdef bint is_whole(self, u64 reference, bint mend) except -1
    cpdef int free(self, u64 reference) except -1
    @cython.locals(found=u64, primary=u64, mask=u64, scope=bint)
    cdef int _clear(self, u64 reference) except -1
    @cython.locals(start=int, words=int, index=int, scope=bint)
    cpdef int free_all(self, u64[::1] references, int count) except -1
    @cython.final
    @cython.locals(row=u64, k=u64)
    cdef int _clear_word(self, u64 reference, u64 primary, u64 mask) except -1
    @cython.final
    @cython.locals(node=int)
    cdef int _demand_uncut(self) except -1
    @cython.final
    cdef bint _clear_at(self, u64 at, u64 mask) except -1
    @cython.locals(bits=u64, slot=u64, first=u64, record=u64, word=u64, seen=u64)
    cdef bint _held(self, u64 reference) except -1
    @cython.locals(word=u64)
    cpdef bint settle(self, u64 reference, u64 link_address) except -1
