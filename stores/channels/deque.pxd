cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.lock.lock cimport Lock
from limpet.stores.channels.regions.links cimport unlink
from limpet.stores.channels.regions.region cimport *

cdef u64 CHANGES
cdef u64 COUNT
cdef u64 DATA
cdef int FIRST
cdef int LOOKS
cdef double LOOK_S
cdef long long SIZE_MAX

cdef class Deque(Channel):
    cdef readonly u64 largest
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly u64 size
    cdef readonly bint bounded
    cdef u64 stride
    cdef u64 count
    cdef readonly u64 item_size
    cdef readonly u64 node
    cdef readonly u64 places
    cdef readonly Lock lock
    cdef Allocator allocator

    @cython.locals(entered=bint, step=u64)
    cdef int _begin(self) except -1
    cdef int _finish(self) except -1
    @cython.locals(word=u64, first=u64, count=u64)
    cdef tuple _ends(self)
    @cython.locals(at=u64)
    cdef int _count_up(self) except -1
    cdef u64 _link(self, u64 place) noexcept
    cpdef append(self, item)
    cpdef appendleft(self, item)
    @cython.locals(data=bytes, done=bint)
    cdef int _add(self, item, bint left) except -1
    @cython.locals(
        first=u64, count=u64, size=u64, full=bint, place=u64, at=u64, reference=u64, index=int
    )
    cdef bint _put(self, bytes data, bint left) except -1
    cpdef pop(self)
    cpdef popleft(self)
    @cython.locals(first=u64, count=u64, place=u64)
    cdef object _take(self, bint left)
    @cython.locals(at=u64, size=u64, reference=u64)
    cdef object _data(self, u64 place)
    cdef list _look(self, index)
    @cython.locals(changes=u64, first=u64, count=u64, number=u64, found=list, same=bint,
        length=object, numbers=object)
    cdef object _copy(self, index)
