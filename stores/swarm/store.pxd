cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.growth cimport ReplicatedGrowth
from limpet.stores.race.old.index cimport is_valid
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.register cimport Register, area_of
from limpet.stores.swarm.row cimport Row, Wanted
from limpet.stores.swarm.registers cimport Registers
from limpet.stores.swarm.words cimport tuple_word

cdef u64 ADDRESS_MASK
cdef int AGAIN
cdef u64 BUFFER
cdef u64 CAPACITY_MASK
cdef u64 DEATH
cdef int DELETED
cdef int DELETING
cdef int DONE
cdef int EXISTS
cdef int FAILED
cdef int FULL
cdef int GONE
cdef int GROUP_WORDS
cdef u64 HEADER
cdef int IDLE
cdef int INSERT
cdef u64 IN_PLACE_LEAST
cdef u64 MASK
cdef u64 MIX
cdef int MISSING
cdef int NODE_SHIFT
cdef int NO_MEMORY
cdef u64 OLD
cdef u64 FROZEN
cdef u64 OBJECT_MASK
cdef u64 PLACE_BITS
cdef int UPDATE
cdef u64 VERIFIED
cdef u64 VIEW

cdef class Swarm(ReplicatedGrowth):
    cdef readonly KeyRegister register
    cdef readonly LocationCache cache
    cdef bint guesses
    cdef bint shared
    cdef u64 seen_view
    cdef long long place
    cdef u64 made
    cdef u64 made_word

    @cython.locals(outcome=int)
    cdef int _get_once(self, bytes key, long long at) except -1
    @cython.locals(row=Row)
    cdef int _note_read(self, int outcome) except -1
    @cython.locals(at='long long', attempt=u64, ident=u64, outcome=int, swept=bint)
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(viewed=u64)
    cdef int _attend(self) except -1
    cdef int _again_after(self, error) except -1
    @cython.locals(at='long long', reference=u64, shape=u64, area=u64, capacity=u64)
    cdef long long _foresee(self, bytes key) except -2
    @cython.locals(reference=u64, ident=u64, shape=u64, area=u64)
    cdef bint _remembered(self, bytes key, long long at) except -1
    cdef int _first(self, u64 reference) noexcept
    cdef int _remember(self) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, reference=u64, area=u64, first=int)
    cdef u64 _seek(self, bytes key) except? 0
    @cython.locals(ident=u64, capacity=u64)
    cdef int _turn_to(self, bytes key, u64 reference) except -1
    @cython.locals(register=Register)
    cdef int _learn_place(self, bytes key) except -1
    @cython.locals(outcome=int, slot=u64)
    cdef int _write_at(
        self, bytes key, bytes value, long long at, int mode, u64 attempt
    ) except -1
    @cython.locals(outcome=int, ticket=u64)
    cdef int _write_found(self, bytes key, bytes value, int mode, u64 slot) except -1
    @cython.locals(desired=u64, outcome=int)
    cdef int _insert_new(self, bytes key, bytes value, u64 attempt) except -1
    @cython.locals(
        register=KeyRegister, logged=Registers, writer=int, capacity=u64, node=u64, size=u64,
        reference=u64, buffer=u64, area=u64, ident=u64, word=u64, wanted=Wanted
    )
    cdef bint _make_register(self, bytes key, bytes value) except -1
    @cython.locals(
        slot=u64, register=KeyRegister, outcome=int, ticket=u64, attempt=u64, quorum=Quorum
    )
    cdef int _delete_once(self, bytes key) except -1
    @cython.locals(reference=u64, held=int, won=bint, pointer=u64, offset=u64)
    cdef bint _unmap(self, u64 slot, u64 word, u64 ticket) except -1
    @cython.locals(at=u64, winner=u64)
    cdef bint _vacate_alone(self, u64 slot, u64 word, u64 ticket) except -1
