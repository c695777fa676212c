cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.fusee.index cimport ReplicatedIndex
from limpet.stores.race.index cimport Place, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.layout cimport *
from limpet.stores.swarm.register cimport Register, Registers, area_of, first_of
from limpet.stores.swarm.row cimport Row

cdef class Finder:
    cdef readonly ReplicatedIndex index
    cdef readonly Registers logged
    cdef readonly KeyRegister register
    cdef readonly Endpoint endpoint
    cdef readonly int replicas
    cdef readonly LocationCache cache
    cdef readonly bint guesses
    cdef readonly bint shared
    cdef readonly object view
    cdef u64 seen_view

    cpdef int forget(self) except -1
    @cython.locals(viewed=u64)
    cpdef int attend(self) except -1
    @cython.locals(at='long long', reference=u64, shape=u64, area=u64, length=u64)
    cdef long long prefetch(self, bytes key) except -2
    cpdef bint recall(self, KeyRegister register, bytes key, long long at) except -1
    @cython.locals(
        reference=u64, ident=u64, shape=u64, area=u64, length=u64, capacity=u64, first=int
    )
    cdef int select(self, KeyRegister register, long long at) except -1
    @cython.locals(register=Register, at='long long')
    cdef long long remember_register(self, bytes key) except -2
    cpdef int note_write(self, KeyRegister register, long long at) except -1
    @cython.locals(shape=u64)
    cdef int note_length(self, u64 length, long long at) except -1
    @cython.locals(row=Row)
    cpdef int note_read(self, KeyRegister register, int outcome, long long at) except -1
    @cython.locals(scope=bint)
    cdef int _note_row(self, Row row, long long at) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, reference=u64, area=u64, first=int)
    cdef u64 seek(self, Place place, bytes key) except? 0
