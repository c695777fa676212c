cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.slots cimport ReplicatedSlots
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Place, is_valid
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.register cimport Register, area_of, first_of
from limpet.stores.swarm.registers cimport Registers
from limpet.stores.swarm.row cimport Row, Wanted
from limpet.stores.swarm.unmapping cimport Unmapping
from limpet.stores.swarm.words cimport tuple_word

cdef int AGAIN
cdef u64 BUFFER
cdef u64 CAPACITY_MASK
cdef int DELETED
cdef int DONE
cdef int EXISTS
cdef int FAILED
cdef int FULL
cdef int GONE
cdef u64 HEADER
cdef int IDLE
cdef int INSERT
cdef u64 IN_PLACE_LEAST
cdef int MISSING
cdef int NODE_SHIFT
cdef int NO_MEMORY
cdef u64 FROZEN
cdef u64 OBJECT_MASK
cdef int UPDATE
cdef u64 VERIFIED
cdef u64 VIEW

@cython.final
cdef class Made:
    cdef u64 reference
    cdef u64 word

cdef class Swarm(HashStore):
    cdef readonly Registers logged
    cdef readonly ReplicatedTables tables
    cdef readonly KeyRegister register
    cdef public ReplicatedSlots writer
    cdef readonly Unmapping unmapping
    cdef readonly object register_check
    cdef readonly object restoring
    cdef readonly LocationCache cache
    cdef bint guesses
    cdef bint shared
    cdef u64 seen_view
    cdef Made made

    @cython.locals(outcome=int)
    cdef int _get_once(self, bytes key, long long at) except -1
    @cython.locals(row=Row)
    cdef int _note_read(self, int outcome, long long at) except -1
    @cython.locals(at='long long', attempt=u64, ident=u64, outcome=int)
    cpdef int _write(self, key, value, int mode) except -1
    @cython.locals(viewed=u64)
    cdef int _attend(self) except -1
    cdef int _again_after(self, error) except -1
    @cython.locals(at='long long', reference=u64, shape=u64, area=u64, capacity=u64, first=int)
    cdef long long _prefetch(self, bytes key) except -2
    @cython.locals(reference=u64, ident=u64, shape=u64, area=u64, first=int)
    cdef bint _remembered(self, bytes key, long long at) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, reference=u64, area=u64, first=int)
    cdef u64 _seek(self, Place place, bytes key) except? 0
    @cython.locals(ident=u64, capacity=u64, first=int)
    cdef int _select(self, bytes key, u64 reference) except -1
    @cython.locals(register=Register, at='long long')
    cdef long long _learn_place(self, bytes key) except -2
    @cython.locals(outcome=int, slot=u64, place=Place)
    cdef int _write_at(
        self, bytes key, bytes value, long long at, int mode, u64 attempt
    ) except -1
    @cython.locals(row=Row, outcome=int)
    cdef int _write_to(self, bytes value, int mode, long long at) except -1
    @cython.locals(outcome=int, ticket=u64)
    cdef int _write_found(self, Place place, bytes key, bytes value, int mode, u64 slot) except -1
    @cython.locals(made=Made, desired=u64, outcome=int, at='long long')
    cdef int _insert_new(self, Place place, bytes key, bytes value, u64 attempt) except -1
    @cython.locals(
        register=KeyRegister, writer=int, capacity=u64, node=u64, size=u64, reference=u64,
        buffer=u64, area=u64, ident=u64, word=u64, wanted=Wanted
    )
    cdef bint _make_register(self, Place place, bytes key, bytes value) except -1
    @cython.locals(
        slot=u64, register=KeyRegister, outcome=int, ticket=u64, attempt=u64, quorum=Quorum,
        place=Place
    )
    cdef int _delete_once(self, bytes key) except -1
