cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.cells cimport Cells
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.regions.links cimport unlink_from

cdef u64 COUNT
cdef int FIRST
cdef long long INDEX_MAX
cdef int LOOKS
cdef u64 PIECE

cdef class Deque(Cells):
    cdef readonly bint bounded
    cdef u64[::1] many
    cdef u64[::1] links

    cdef tuple _ends(self)
    @cython.locals(word=u64, first=u64, count=u64)
    cdef tuple _known_ends(self)
    cpdef append(self, item)
    cpdef appendleft(self, item)
    @cython.locals(data=bytes, done=bint)
    cdef int _add(self, item, bint left) except -1
    @cython.locals(
        first=u64, count=u64, full=bint, cell=u64, link=u64, ticket=u64, reference=u64,
    )
    cdef bint _put(self, bytes data, bint left) except -1
    cpdef pop(self)
    cpdef popleft(self)
    @cython.locals(first=u64, count=u64, cell=u64)
    cdef object _take(self, bint left)
    @cython.locals(first=u64, count=u64, links=u64[::1], done=u64, cell=u64, here=u64, number=u64)
    cpdef clear(self)
    cdef list _look(self, index)
    @cython.locals(
        first=u64, count=cython.longlong, ends=u64, changes=u64, begin=cython.longlong,
        length=cython.longlong, here=int, number=int, found=list,
    )
    cdef object _copy(self, index)
    @cython.locals(here=u64)
    cdef int _post_cells(self, u64 cell, u64 most) except -1
    @cython.locals(at=u64, size=u64, address=u64)
    cdef object _copied(self, u64 number)
