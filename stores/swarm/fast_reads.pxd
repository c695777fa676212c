cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.clients.writer_numbers cimport WriterNumbers
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport ADDRESS_MASK
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport (
    first_of, greatest, is_final, is_tombstone, stamp_of, value_in_place, words_to_read,
)
from limpet.stores.swarm.replica cimport Quorum, Replica
from limpet.stores.swarm.row cimport Turns

cdef u64 MASK
cdef object UNPROVEN

@cython.final
cdef class FastReads:
    cdef readonly Finder finder
    cdef LocationCache cache
    cdef Endpoint endpoint
    cdef Heap heap
    cdef Client client
    cdef Turns turns
    cdef WriterNumbers numbers
    cdef int replicas
    cdef int majority
    cdef int width
    cdef int writers
    cdef u64 most
    cdef Py_ssize_t whole
    cdef Py_ssize_t room
    cdef u64[::1] words
    cdef u64[::1] bases
    cdef u64[::1] order
    cdef long long[::1] at
    cdef long long[::1] counts

    cdef object read(self, bytes key, u64 drops)
    @cython.locals(top=u64)
    cdef bint _is_gone(self) noexcept
    @cython.locals(ident=u64, last=u64, view=u64, n=int)
    cdef bint _stands(self, u64 drops) except -1
    @cython.locals(
        entry=u64[::1], reference=u64, shape=u64, area=u64, length=u64, head=u64, steps=u64, k=int,
        own=Py_ssize_t, size=u64, read=int, base=u64
    )
    cdef bint select(self, int row, bytes key, long long at) except -1
    @cython.locals(shape=u64)
    cdef bint _is_placed(self, long long at) noexcept
    @cython.locals(own=Py_ssize_t, start=Py_ssize_t, n=int)
    cdef int post(self, int row) except -1
    @cython.locals(
        at='long long', ident=u64, start=Py_ssize_t, other=Py_ssize_t, top=u64, least=u64, word=u64,
        place=Py_ssize_t, length=u64, shape=u64
    )
    cdef object value(self, int row)
    @cython.locals(start=Py_ssize_t, count=int, n=int, k=int, replica=Replica)
    cdef int hand_over(self, int row, Quorum quorum) except -1
