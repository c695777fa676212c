cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.status cimport BATCH
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Register
from limpet.stores.swarm.words cimport is_tombstone

cdef u64 CAPACITY_MOST

cdef class BatchRows:
    cdef readonly object pool
    cdef readonly int entry
    cdef readonly str owner
    cdef readonly Finder finder
    cdef readonly object parameters
    cdef readonly list registers
    cdef readonly long long[::1] at

    @cython.locals(
        finder=Finder, cache=LocationCache, row=int, register=KeyRegister, place=Register,
        at='long long',
    )
    cdef int select(self, list keys, int count) except -1

cdef class BatchReads:
    cdef readonly BatchRows rows
    cdef readonly Finder finder
    cdef readonly Endpoint endpoint

    @cython.locals(
        rows=BatchRows, count=int, there=bint, left=list, row=int, at='long long', register=KeyRegister,
        )
    cdef list get(self, list keys, list found)
    @cython.locals(rows=BatchRows, posted=bint, row=int, register=KeyRegister)
    cdef bint _read_all(self, int count) except -1
    @cython.locals(quorum=Quorum, m=u64)
    cpdef object value_of(self, KeyRegister register)
