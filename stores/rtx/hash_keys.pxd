cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.race.glance cimport Glance
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.layout cimport FROZEN
from limpet.stores.records cimport Objects
from limpet.stores.rtx.hash_slots cimport TransactionHolds, TransactionSlots
from limpet.stores.rtx.layout cimport *
from limpet.stores.rtx.reads cimport KeyRead, Reads, TxKeys

cdef object CHANGED
cdef object UNPROVEN

cdef class NotedGlance(Glance):
    cdef u64 slot

    cdef int learn(self, Place place, u64 slot) except -1

cdef class HashKeys(TxKeys):
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Allocator allocator
    cdef readonly Index index
    cdef readonly Objects objects
    cdef readonly TransactionSlots writer
    cdef readonly TransactionHolds holds
    cdef NotedGlance glance
    cdef readonly Place place
    cdef readonly u64 slot
    cdef readonly bytes value
    cdef readonly u64 cramped

    cpdef bytes look_up(self, bytes key)
    cpdef u64 busy_at(self) except? 255
    cpdef bytes value_here(self)
    @cython.locals(store=HashStore, attempt=u64, busy=u64)
    cpdef object read(self, Reads reads, bytes key)
    @cython.locals(client=Client)
    cdef object _glanced(self, Reads reads, bytes key)
    @cython.locals(place=Place)
    cpdef int attest(self, KeyRead read) except -1
    cpdef bint stands(self, KeyRead read) except -1
    @cython.locals(word=u64)
    cpdef bint is_writable(self, KeyRead read) except -1
    @cython.locals(read=KeyRead)
    cpdef bint note(self, Reads reads, bytes key, value) except -1
    cpdef int refuse(self, bytes key, bytes value) except -1
    @cython.locals(place=Place, index=int)
    cpdef tuple place_for(self, bytes key, object taken)
