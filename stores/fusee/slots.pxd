cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.status cimport *
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.fusee.snapshot cimport ReplicatedSlot
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.index cimport Index, Place, is_vacant, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.slots cimport Slots

cdef u64 PATIENCE

@cython.final
cdef class Round:
    cdef public int doing
    cdef readonly u64 link_address
    cdef readonly u64 old
    cdef readonly u64 new

    cdef int begin(self, int doing, u64 link_address, u64 old, u64 new) noexcept

cdef class ReplicatedSlots(Slots):
    cdef readonly ReplicatedTables tables
    cdef readonly LoggedObjects logged
    cdef public ReplicatedSlot slot
    cdef public ReplicatedSlot other
    cdef readonly Round round

    @cython.locals(ticket=u64)
    cpdef bint is_blind(self) except -1
    cpdef int replace(self, Place place, u64 slot, u64 desired) except -1
    cpdef int swap(self, Place place, u64 slot, u64 desired) except -1
    @cython.locals(word=u64, link_address=u64, old=int)
    cdef int _take_part(self, Place place, u64 slot, u64 desired, int doing) except -1
    @cython.locals(word=u64, ticket=u64, link_address=u64, old=int, won=bint)
    cpdef int remove(self, Place place, u64 slot) except -1
    cdef int _mark_alone(self, u64 word) except -1
    @cython.locals(index=int, slot=ReplicatedSlot, vacant=u64, still=bint)
    cpdef int insert(self, Place place, bytes key, u64 desired, u64 attempt) except -1
    cdef bint _still_has(self, u64 vacant) except -1
    cdef bint _loses_patience(self, u64 attempt) noexcept
    @cython.locals(ticket=u64)
    cdef bint _decide(self, u64 vacant, u64 desired) except -1
    @cython.locals(first=u64, second=u64)
    cpdef int _read_backup(self, Place place) except -1
    cpdef int _withdraw(self, u64 desired, bint hurry) except -1
    @cython.locals(index=Index)
    cpdef bint _rival_found(self, Place place, bytes key, int own, u64 attempt) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, slot=u64)
    cpdef bint _rival_in(
        self, Place place, bytes key, int own, u64 attempt, u64[::1] primary, int first,
        u64[::1] backup, int second,
    ) except -1
    @cython.locals(word=u64)
    cdef bint _key_in(self, u64 slot, bytes key, u64 fingerprint) except -1
    @cython.locals(theirs=u64)
    cdef _require_one_key(self, u64 slot, u64 word, u64 head, bytes key)
    cdef bint _yield_to(self, u64 slot, u64 word, u64 head, u64 attempt) except -1
    @cython.locals(tables=ReplicatedTables, ticket=bint)
    cpdef bint resolved(self, u64 reference, u64 link_address) except -1
    cpdef int recall(self, int node) except -2
    @cython.locals(done=Round, word=u64)
    cdef int _outcome(self) except -2
