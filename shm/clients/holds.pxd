cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, bit, u64
from limpet.shm.endpoint.words cimport OWES, REFERENCE_MASK

cdef u64 ALIASED

@cython.locals(endpoint=Endpoint, freed=bint, word=u64, index=int, lost=bint)
cpdef bint let_go(Client client, u64 record) except -1

cdef class Holds:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly list owners
    cdef bint marked

    cpdef int forget(self) except -1
    @cython.locals(index=Py_ssize_t, record=u64)
    cpdef u64 take(self, u64 word, owner) except 0
    @cython.locals(index=Py_ssize_t, record=u64)
    cpdef u64 record_of(self, owner) except? 0
    @cython.locals(index=Py_ssize_t)
    cpdef int give_back(self, owner) except -1
    cpdef int release(self, owner) except -1
    cdef int _release(self, Py_ssize_t index) except -1
    @cython.locals(index=Py_ssize_t)
    cdef Py_ssize_t _index_of(self, owner) except -2
    @cython.locals(index=Py_ssize_t)
    cdef bint _any(self) except -1
    @cython.locals(slot=u64)
    cdef u64 _slot(self) noexcept
