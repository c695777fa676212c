cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.cells cimport Cells
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.regions.links cimport unlink

cdef u64 COUNT
cdef int FIRST
cdef long long INDEX_MAX
cdef int LOOKS

cdef class Deque(Cells):
    cdef readonly bint bounded

    @cython.locals(word=u64, first=u64, count=u64)
    cdef tuple _ends(self)
    cpdef append(self, item)
    cpdef appendleft(self, item)
    @cython.locals(data=bytes, done=bint)
    cdef int _add(self, item, bint left) except -1
    @cython.locals(first=u64, count=u64, full=bint, cell=u64)
    cdef bint _put(self, bytes data, bint left) except -1
    cpdef pop(self)
    cpdef popleft(self)
    @cython.locals(first=u64, count=u64, cell=u64)
    cdef object _take(self, bint left)
    cdef list _look(self, index)
    @cython.locals(
        changes=u64, first=u64, count=u64, number=u64, found=list, same=bint,
        length=object, numbers=object,
    )
    cdef object _copy(self, index)
