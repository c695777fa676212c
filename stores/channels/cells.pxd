cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64, words_bytes
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.lock.lock cimport Lock
from limpet.stores.channels.phases cimport cas_alone, load_alone
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.channels.regions.region cimport *
from limpet.stores.core.object_layout cimport *

cdef u64 DATA
cdef u64 STEP
cdef double LOOK_S
cdef long long SIZE_MAX

cdef class Cells(Channel):
    cdef readonly u64 largest
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly u64 size
    cdef u64 stride
    cdef readonly u64 count
    cdef readonly u64 item_size
    cdef readonly u64 node
    cdef readonly u64 cells
    cdef readonly Lock lock
    cdef Allocator allocator
    cdef u64[::1] head
    cdef u64[::1] words
    cdef u64[::1] reference

    @cython.locals(entered=bint, step=u64)
    cdef int _begin(self) except -1
    cdef int _finish(self) except -1
    cdef u64 _step(self) except? 0xFEEDFACEDEADBEA7
    cdef int _read_head(self) except -1
    cdef int _count_up(self) except -1
    cdef int _post_word(self, u64 word) except -1
    cdef u64 _link(self, u64 cell) noexcept
    cdef bytes _encoded(self, item)
    @cython.locals(size=u64, at=u64)
    cdef bint _write(self, u64 cell, bytes data) except -1
    cdef int _written(self, u64 cell, bytes data) except -1
    cdef int _replenish(self, bytes data) except -1
    cdef object _read(self, u64 cell)
    cdef int _post_cell(self, u64 cell) except -1
    cdef bint _is_whole(self) except -1
    cdef bytes _inline(self, u64[::1] words, u64 at, u64 size)
    @cython.locals(size=u64, address=u64)
    cdef object _element(self, u64 cell)
