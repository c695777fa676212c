cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport is_vacant
from limpet.stores.transactions.layout cimport *

cdef Py_ssize_t HEADER

cdef class LogEntry:
    cdef readonly u64 at
    cdef public u64 old
    cdef public u64 new
    cdef public u64 place

    cpdef int describe(self, u64 at, u64 old, u64 new) except -1

cdef class EntryLog:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly u64 reference
    cdef readonly u64 at
    cdef readonly list noted
    cdef u64[::1] words

    cpdef int find(self, Client client, u64 reference) except -1
    cpdef int open(self, u64 owner) except -1
    @cython.locals(index=u64, at=u64, words=u64[::1])
    cpdef int note(self, LogEntry entry) except -1
    cpdef u64 owner(self) except? 0xFEEDFACEDEADBEA7
    cpdef u64 state(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(endpoint=Endpoint, heap=Heap, count=u64, size_class=u64, room=u64, at=u64, _=u64)
    cpdef list entries(self)

cpdef u64 log_size(u64 entries) noexcept
@cython.locals(entry=LogEntry, pointer=u64)
cpdef int free_entries(Heap heap, list entries, bint committed) except -1
