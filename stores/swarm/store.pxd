cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport EXACTLY
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.base cimport Attempt, as_bytes
from limpet.stores.core.status cimport *
from limpet.stores.fusee.index cimport ReplicatedIndex
from limpet.stores.fusee.links cimport BUFFER, BUFFER_ENTRIES, FAILED, IDLE
from limpet.stores.fusee.slots cimport ReplicatedSlots
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Place
from limpet.stores.race.layout cimport OBJECT_MASK
from limpet.stores.swarm.batches cimport BatchReads
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.fast_reads cimport FastReads
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.key_register cimport KeyRegister, NewRegister, Tombstone, Unmapping
from limpet.stores.swarm.layout cimport (
    ATTEMPTS_MAX, DELETED, GONE, IN_PLACE_MAX, NO_NUMBER, UNDECIDED, UNVERIFIED,
)
from limpet.stores.swarm.register cimport Registers, first_of
from limpet.stores.swarm.replica cimport Quorum
from limpet.stores.swarm.row cimport Row

@cython.final
cdef class WriteSteps:
    cdef readonly Finder finder
    cdef readonly NewRegister made
    cdef readonly ReplicatedSlots writer
    cdef readonly Unmapping unmapping
    cdef readonly ReplicatedTables tables
    cdef readonly ReplicatedIndex index
    cdef readonly KeyRegister register
    cdef readonly LocationCache cache
    cdef readonly Endpoint endpoint
    cdef readonly Client client

    @cython.locals(outcome=int, slot=u64, node=u64)
    cdef int write(
        self, Place place, bytes key, bytes value, long long at, int mode, u64 attempt, bint asked
    ) except -1
    @cython.locals(row=Row, outcome=int)
    cdef int _write_to(self, bytes value, int mode, long long at) except -1
    @cython.locals(reference=u64, fingerprint=u64, index=int, word=u64)
    cdef u64 slot_of_register(self, Place place) except? 0
    @cython.locals(outcome=int, ticket=u64)
    cdef int _write_found(self, Place place, bytes key, bytes value, int mode, u64 slot) except -1
    @cython.locals(made=NewRegister, desired=u64, outcome=int, at='long long')
    cdef int _insert_new(
        self, Place place, bytes key, bytes value, u64 attempt, bint asked
    ) except -1

cdef int FOUND_MAX
cdef int IDLE_MAX
cdef int LOSSES_MAX
cdef int SETTLES

cdef class Swarm(HashStore):
    cdef readonly Registers logged
    cdef readonly ReplicatedTables tables
    cdef readonly KeyRegister register
    cdef public ReplicatedSlots writer
    cdef readonly Unmapping unmapping
    cdef readonly object register_check
    cdef readonly object restoring
    cdef readonly object refilling
    cdef readonly Finder finder
    cdef readonly LocationCache cache
    cdef readonly FastReads fast
    cdef bint unpinned
    cdef list searched
    cdef int sought
    cdef readonly WriteSteps steps
    cdef readonly BatchReads reads

    @cython.locals(key=bytes)
    cdef int _prefetch_keys(self, list keys) except -1
    cpdef long long _prefetched(self, bytes key) except -2
    cpdef list get_batch(self, list keys, list found)
    cpdef Attempt _note(self, int outcome, Attempt way, bytes key, u64 size)
    cpdef Attempt _go_on(
        self, int outcome, Attempt way, bytes key, bytes value, u64 size, int mode, u64 attempt
    )
    @cython.locals(outcome=int, register=KeyRegister)
    cpdef object get_once(self, bytes key, u64 attempt, long long at)
    cpdef object glance_at(self, bytes key)
    @cython.locals(outcome=int)
    cpdef int _write(self, key, value, int mode) except -1
    cdef int _settle_due(self) except -1
    cdef bint _settle_idle(self) except -1
    @cython.locals(register=KeyRegister, after=u64)
    cdef u64 _settle(self, u64 reference, u64 ident, int writer, u64 before) except? 0
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    cdef int _again_after(self, error) except -1
    @cython.locals(
        slot=u64, register=KeyRegister, tombstone=Tombstone, outcome=int, known=bint, ticket=u64,
        attempt=u64, quorum=Quorum,
    )
    cdef int _delete(self, Place place, bytes key, long long at) except -1
