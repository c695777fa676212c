cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.base cimport as_bytes
from limpet.stores.records cimport Objects
from limpet.stores.race.old.store cimport Growing
from limpet.stores.race.old.index cimport Index, is_valid
from limpet.stores.race.old.table cimport Race
from limpet.stores.rtx.lllock cimport LLLocks

cdef u64 ADDRESS_MASK
cdef u64 COUNT_MAX
cdef u64 ENTRY_SIZE
cdef u64 FROZEN
cdef u64 FROZEN_VACANT
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 LINK_MASK
cdef int NODE_SHIFT
cdef u64 OBJECT_MASK
cdef u64 OWNER
cdef u64 PART_COUNT
cdef u64 PART_ENTRIES
cdef u64 PART_LOG
cdef u64 PART_OWNER
cdef u64 REPLICATED
cdef u64 SLOT
cdef u64 STATE
cdef u64 STATE_MASK
cdef u64 TENTATIVE

cdef u64 ABORT
cdef u64 COMMITTED
cdef u64 DOING
cdef u64 INIT

cdef int AGAIN
cdef int MISSING

cdef class Transactional(Growing):
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly object repair
    cdef readonly u64 busy
    cdef u64 place
    cdef object value
    cdef u64 met

    @cython.locals(attempt=u64)
    cdef int _give_way(self, u64 attempt) except -1
    @cython.locals(outcome=int)
    cdef int _write_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    @cython.locals(outcome=int)
    cdef int _delete_once(self, bytes key) except -1
    cdef int _replace(self, u64 slot, u64 word, u64 desired) except -1
    cdef int _remove(self, u64 slot, u64 word) except -1
    cdef int _insert(self, bytes key, u64 desired, u64 attempt) except -1
    cdef bint _rival(self, bytes key, u64 slot, u64 attempt) except -1
    @cython.locals(vacant=u64)
    cdef u64 _vacant(self, u64 word) except? 0
    @cython.locals(slot=u64)
    cdef u64 _match(self, bytes key, int row, bint phases) except? 0
    @cython.locals(part=u64, entry=u64, decided=u64, old=u64, new=u64, final=u64)
    cdef u64 _held(self, u64 slot, u64 word, bytes key) except? 0
    @cython.locals(count=u64, index=u64, entry=u64)
    cdef u64 _entry_of(self, u64 part, u64 slot) except? 0
    @cython.locals(log=u64, state=u64)
    cdef u64 _decision(self, u64 part) except? 255
    cdef bint _has(self, u64 word, bytes key) except -1
    @cython.locals(part=u64, entry=u64, committed=bint, final=u64, held=u64)
    cdef u64 _settled(self, u64 slot, u64 word) except? 0
    cpdef object look_up(self, bytes key)
    cpdef tuple witness(self)
    cpdef bint stands(self, tuple witness) except -1
    @cython.locals(index=int)
    cpdef tuple place_for(self, bytes key, object taken)
    @cython.locals(node=u64, reference=u64)
    cpdef u64 pair_for(self, bytes key, object value, u64 old) except? 0
    @cython.locals(fingerprint=u64, index=int, word=u64, other=u64, reference=u64)
    cpdef bint is_alone(self, bytes key, u64 slot) except -1
