cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.rtx.lllock cimport LLLocks, is_vacant
from limpet.stores.rtx.log cimport Entry, Log
from limpet.stores.rtx.parts cimport Change
from limpet.stores.rtx.reads cimport Reads

cdef int AGAIN
cdef u64 ADDRESS_MASK
cdef int DONE
cdef u64 EXTENT_PAIR
cdef u64 LOGGED
cdef int NODE_SHIFT
cdef int NO_MEMORY
cdef u64 POINTER
cdef u64 REFERENCE_MASK
cdef u64 SLOT
cdef u64 STRIDE

cdef class SlotWrite:
    cdef readonly object store
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly u64 old
    cdef readonly bint inserts

    cpdef u64 size(self) except? 0

cdef class Commit:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef public Allocator allocator
    cdef readonly Heap heap
    cdef readonly object locks
    cdef readonly object membership
    cdef public u64 effort
    cdef public Reads reads
    cdef public u64 link
    cdef public dict pages
    cdef public dict versions
    cdef public list extents
    cdef public dict loose
    cdef public dict dropped
    cdef public dict swings
    cdef public dict slots
    cdef public list parts
    cdef public list crowded
    cdef public u64 busy
    cdef public dict owners
    cdef u64 first

    cpdef begin(self, u64 link)
    cpdef int go_on(self, u64 count) except -1
    cpdef int expect(self, u64 at, u64 version) except -1
    cpdef int write(self, u64 at, page) except -1
    cpdef int write_slot(self, u64 slot, SlotWrite write) except -1
    cpdef bint complete(self) except -1
    cpdef carry_out(self, Log log)
    @cython.locals(state=u64, size=u64, parts=dict, log=Log, outcome=int)
    cpdef int run(self) except -1
    @cython.locals(held=dict, whole=bint)
    cdef int _attempt(self, Log log, u64 state, dict parts, u64 size) except -1
    cpdef int _end_without(self, u64 state, bint committed) except -1
    cpdef dict _slots_by_node(self)
    @cython.locals(count=u64, size=u64, write=SlotWrite)
    cpdef u64 _size_by_words(self, dict parts) except 0
    @cython.locals(node=u64, reference=u64, log=Log)
    cdef Log _open(self, u64 state, u64 size)
    @cython.locals(reference=u64, count=u64, at=u64)
    cdef bint _write_all(self, Log log, u64 state, dict parts, u64 size) except -1
    @cython.locals(slot=u64, count=u64, new=u64, write=SlotWrite)
    cdef bint _write_part(self, Log log, u64 reference, list slots) except -1
    cpdef u64 _new_extent(self, staging, u64 at, bytes key, bytes value) except? 0
    cdef int _noted(self, Log log, Entry entry) except -1
    @cython.locals(held=dict, entries=list, index=u64, at=u64, version=u64, read=u64)
    cpdef dict _lock_all(self, Log log, u64 state)
    @cython.locals(count=u64, slot=u64, write=SlotWrite, change=Change)
    cpdef bint _hold_slots(self) except -1
    @cython.locals(write=SlotWrite)
    cpdef bint validate(self) except -1
    @cython.locals(at=u64, version=u64)
    cpdef int _abort(self, Log log, dict held, u64 state) except -1
