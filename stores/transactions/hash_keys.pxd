cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.glance cimport Glance
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Holds, Index, Place, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.slots cimport Slots
from limpet.stores.transactions.changes cimport begin_change, end_change
from limpet.stores.transactions.layout cimport (
    ABORT, AT_ONCE_MAX, COMMITTED, COUNT_MAX, DOING, ENTRY_SIZE, INIT, OWNER, PART_COUNT,
    PART_ENTRIES, PART_LOG, PART_OWNER, SLOT, STATE, STATE_MASK, WORDS,
)
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.reads cimport KeyRead, Reads, TxKeys

cdef object CHANGED
cdef object UNPROVEN

cdef class TransactionHolds(Holds):
    cdef readonly Objects objects
    cdef readonly Heap heap
    cdef readonly Endpoint endpoint
    cdef u64[::1] words

    @cython.locals(part=u64, entry=u64, decided=u64, old=u64, new=u64, final=u64)
    cpdef u64 held(self, Place place, u64 slot, u64 word, bytes key) except? 0
    @cython.locals(part=u64, entry=u64, committed=bint, final=u64, held=u64)
    cpdef u64 settled(self, u64 slot, u64 word) except? 0
    @cython.locals(words=u64[::1], count=u64, index=u64, begin=u64, here=u64, first=u64)
    cdef u64 entry_of(self, u64 part, u64 slot) except? 0
    @cython.locals(log=u64, owner=u64, state=u64, state_ticket=u64, owner_ticket=u64)
    cdef u64 decision(self) except? 255
    cdef bint has(self, u64 word, bytes key) except -1

cdef class TransactionSlots(Slots):
    cdef readonly LLLocks locks

    @cython.locals(outcome=int)
    cpdef int replace(self, Place place, u64 slot, u64 desired) except -1
    @cython.locals(outcome=int)
    cpdef int remove(self, Place place, u64 slot) except -1
    cpdef int begin_changes(self) except -1
    cpdef int end_changes(self) except -1
    @cython.locals(done=bint)
    cpdef bint decide(self, u64 slot, u64 tentative, u64 desired) except -1
    cpdef bint rival(self, Place place, bytes key, u64 slot, u64 attempt) except -1
    @cython.locals(vacant=u64)
    cpdef u64 vacated(self, u64 word) except? 0
    @cython.locals(index=int)
    cdef int hide(self, Place place, object taken) except -1
    @cython.locals(fingerprint=u64, index=int, word=u64, other=u64, reference=u64)
    cpdef bint is_alone(self, Place place, TransactionHolds holds, bytes key, u64 slot) except -1

cdef class NotedGlance(Glance):
    cdef u64 slot

    cdef int note_found(self, Place place, u64 slot) except -1

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
    cpdef int post_stands(self, KeyRead read, int row) except -1
    cpdef bint stands(self, KeyRead read, int row) except -1
    @cython.locals(word=u64)
    cpdef bint is_writable(self, KeyRead read) except -1
    @cython.locals(read=KeyRead)
    cpdef bint note(self, Reads reads, bytes key, value) except -1
    cpdef int refuse(self, bytes key, bytes value) except -1
    @cython.locals(place=Place, index=int)
    cpdef tuple place_for(self, bytes key, object taken)
