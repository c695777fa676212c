cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, Image, crc_pair, u64, words_put
from limpet.stores.sherman.fences cimport common_bytes
from limpet.stores.sherman.layout cimport *
from limpet.stores.transactions.staged cimport NewData

cpdef u64 link_of(bytes value) except? 0

cdef class Page(NewData):
    cdef readonly Endpoint endpoint
    cdef readonly Image image
    cdef readonly u64[::1] words
    cdef public bint exact
    cdef readonly u64 slot
    cdef readonly int found
    cdef public u64 level
    cdef public u64 count
    cdef public u64 heap
    cdef readonly u64 end

    cpdef int read(self, u64 at) except -1
    cpdef int post(self, u64 at) except -1
    @cython.locals(shape=u64, fences=u64)
    cpdef int parse(self, u64 at) except -1
    cpdef int copy(self, Page other) except -1
    cdef int begin(self, u64 at, u64 state) except -1
    cpdef write(self, u64 at, u64 state)
    cpdef int seal(self) except -1
    cpdef bint is_whole(self) except -1
    @cython.locals(end=u64)
    cpdef int reset(self, u64 level, bytes low, bytes high, u64 sibling) except -1
    @cython.locals(length=u64)
    cpdef bytes low(self)
    @cython.locals(length=u64)
    cpdef bint begins_at(self, bytes key) except -1
    @cython.locals(length=u64)
    cpdef bytes high(self)
    cpdef u64 low_size(self) except? 0xFEEDFACEDEADBEA7
    cpdef bint has_high(self) except -1
    cpdef u64 high_size(self) except? 0xFEEDFACEDEADBEA7
    cpdef u64 sibling(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(length=u64)
    cpdef bint is_below(self, bytes key) except -1
    @cython.locals(length=u64)
    cpdef bint is_above(self, bytes key) except -1
    @cython.locals(length=u64)
    cpdef bint begins_below(self, bytes key) except -1
    @cython.locals(length=u64)
    cpdef bint ends_below(self, bytes end) except -1
    cpdef bint has(self, bytes key) except -1
    cpdef bint has_looked_for(self, bytes key) except -1
    @cython.locals(index=int)
    cpdef int find(self, bytes key) except -1
    @cython.locals(slot=u64, length=u64)
    cpdef int find_next(self, bytes key, int index) except -1
    cpdef bint is_at(self, int index, bytes key) except -1
    cpdef u64 offset(self, int index) except? 0
    @cython.locals(index=int)
    cpdef u64 child(self, bytes key) except? 0
    @cython.locals(index=int)
    cpdef u64 child_below(self, bytes end) except? 0
    @cython.locals(slot=u64)
    cpdef bytes key(self, int index)
    cpdef bytes value(self, int index)
    @cython.locals(start=u64)
    cpdef bytes value_of(self, u64 slot)
    cpdef int pairs(self, int first, int end, list found) except -1
    cpdef bint has_extent(self, int index) except -1
    @cython.locals(slot=u64)
    cpdef u64 link(self, int index) except? 0
    cpdef bint fits(self, bytes key, u64 size) noexcept
    cpdef int insert(self, int index, bytes key, bytes value, u64 flags) except -1
    cpdef int remove(self, int index) except -1
    @cython.locals(heap=Py_ssize_t)
    cpdef int take(self, Page source, int first, int end) except -1
    @cython.locals(slot=u64, start=u64, before=u64)
    cpdef bint set_value(self, int index, bytes value, u64 flags) except -1
    cpdef u64 used(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(slot=u64)
    cpdef u64 size_of(self, int index) except? 0
    cpdef u64 length(self, int index) except? 0xFEEDFACEDEADBEA7
    @cython.locals(key=bytes)
    cpdef bytes border(self, int index)
    cpdef bytes fence_between(self, bytes below, bytes above)
    cpdef u64 border_size(self, int index) except? 0xFEEDFACEDEADBEA7
    cdef u64 border_most(self, int index) except? 0xFEEDFACEDEADBEA7
    @cython.final
    cdef u64 _told_apart(self, int index, bytes key) except 0
    cpdef list entries(self)
