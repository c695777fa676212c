cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.base cimport Attempt, as_bytes
from limpet.stores.core.status cimport *
from limpet.stores.fusee.links cimport BUFFER, BUFFER_ENTRIES
from limpet.stores.fusee.slots cimport ReplicatedSlots
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Place
from limpet.stores.swarm.batch_reads cimport BatchReads
from limpet.stores.swarm.cache cimport LocationCache
from limpet.stores.swarm.finder cimport Finder
from limpet.stores.swarm.key_register cimport KeyRegister
from limpet.stores.swarm.layout cimport ATTEMPTS_MAX, DELETED, GONE
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Registers
from limpet.stores.swarm.unmapping cimport Unmapping
from limpet.stores.swarm.write_steps cimport WriteSteps

cdef int LOSSES_MAX

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
    cpdef int _write(self, key, value, int mode) except -1
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    cdef int _again_after(self, error) except -1
    @cython.locals(
        slot=u64, register=KeyRegister, outcome=int, ticket=u64, attempt=u64, quorum=Quorum
    )
    cdef int delete_once(self, Place place, bytes key) except -1
