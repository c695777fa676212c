cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.status cimport *
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.snapshot cimport ReplicatedSlot
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Place, is_frozen, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.splitter cimport Splitter

cdef class ReplicatedSplitter(Splitter):
    cdef readonly ReplicatedTables tables
    cdef public ReplicatedSlot slot

    cpdef int grow(self, Place place, bytes key) except -1
    @cython.locals(link_address=u64, new=u64, held=int)
    cpdef int begin(self, Place place) except -1
    cpdef int find_memory(self, bytes key, int objects, bint update) except -1
    @cython.locals(
        old=u64, first=u64, second=u64, link_address=u64, before=int, held=int, now=u64,
    )
    cpdef int split(self, Place place) except -1
    @cython.locals(index=int, made=u64)
    cpdef int settle_halves(self, int before, u64 first, u64 second) except -1
    @cython.locals(tables=ReplicatedTables, node=u64, new=u64, filled=u64[::1], k=int)
    cpdef u64 make(self, Place place, u64 number, u64 word) except? 0
    cpdef u64 link(self, u64 new, u64 link_address) except? 0
    @cython.locals(entry=u64, link_address=u64, pointer=u64, new=u64)
    cpdef u64 obtain(self, Place place, u64 number, u64 word) except? 0
    @cython.locals(base=u64, words=u64[::1], head=u64, index=Py_ssize_t)
    cpdef u64 freeze(self, u64 pointer) except? 0
    cdef u64 _freeze_slot(self, u64 word) except? 0
    @cython.locals(held=int, frozen=bint)
    cdef bint _freeze_pair(self, u64 word) except -1
    @cython.locals(held=int, frozen=bint)
    cdef bint _freeze_vacant(self, u64 word) except -1
    @cython.locals(k=int)
    cpdef int fill(self, u64 slot, u64 word) except -1
    cpdef u64 follow(self, Place place, u64 old, u64 offset) except 0
