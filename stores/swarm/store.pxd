cimport cython

from limpet.shm.endpoint.verbs cimport u64
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
from limpet.stores.swarm.layout cimport DELETED, GONE, IN_PLACE_WORDS
from limpet.stores.swarm.quorum cimport Quorum
from limpet.stores.swarm.registers cimport Registers
from limpet.stores.swarm.unmapping cimport Unmapping
from limpet.stores.swarm.write_steps cimport WriteSteps

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
    cdef readonly bint guesses

    @cython.locals(key=bytes)
    cdef int _prefetch_keys(self, list keys) except -1
    @cython.locals(wanted=list, found=list, left=list, start=Py_ssize_t, place=Py_ssize_t)
    cpdef get_many(self, keys)
    @cython.locals(outcome=int)
    cdef int _get_once(self, bytes key, long long at) except -1
    @cython.locals(at='long long', attempt=u64, ident=u64, outcome=int)
    cpdef int _write(self, key, value, int mode) except -1
    cdef int _again_after(self, error) except -1
    @cython.locals(
        slot=u64, register=KeyRegister, outcome=int, ticket=u64, attempt=u64, quorum=Quorum,
        place=Place
    )
    cdef int _delete_once(self, bytes key) except -1
