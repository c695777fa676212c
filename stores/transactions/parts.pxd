cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport is_vacant
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.log cimport Log
from limpet.stores.transactions.participant cimport Participant, go_on
from limpet.stores.transactions.slot_writes cimport Change, SlotWrite

cdef Py_ssize_t ENTRY
cdef u64 FINGERPRINT
cdef Py_ssize_t HEADER

cpdef bint is_held(u64 word) noexcept
@cython.locals(valid=u64)
cpdef u64 held_word(u64 part, Change change) except? 0
cpdef u64 part_size(u64 entries) noexcept

cdef class Part(Participant):
    cdef readonly Endpoint endpoint
    cdef readonly u64 reference
    cdef readonly u64 address
    cdef readonly list writes
    cdef readonly Py_ssize_t begin
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t written
    cdef readonly u64 memory_node
    cdef readonly u64 size
    cdef readonly u64 offset
    cdef readonly object membership
    cdef readonly LLLocks locks

    @cython.locals(reference=u64)
    cpdef int attach(self, Endpoint endpoint, u64 word) except -1
    cpdef int stage(
        self, u64 node, list writes, Py_ssize_t begin, Py_ssize_t end, membership
    ) except -1
    cpdef int place_at(self, u64 size, u64 offset) except -1

    cpdef u64 node(self) except? 255
    @cython.locals(write=SlotWrite)
    cpdef list sizes(self)
    @cython.locals(base=Py_ssize_t)
    cpdef bint reserve(self, Log log, Allocator allocator) except -1
    @cython.locals(
        locks=LLLocks, write=SlotWrite, index=Py_ssize_t, place=Py_ssize_t, count=Py_ssize_t,
        reference=u64, written=Py_ssize_t,
    )
    cdef bint _name(self, Log log, Allocator allocator, Py_ssize_t base) except -1
    @cython.locals(endpoint=Endpoint, locks=LLLocks, at=u64)
    cdef int _write_down(self, Py_ssize_t first, Py_ssize_t end) except -1
    @cython.locals(write=SlotWrite, index=Py_ssize_t)
    cpdef int write_new(self, Log log) except -1
    @cython.locals(write=SlotWrite, index=Py_ssize_t)
    cpdef bint prepare(self, Log log, Allocator allocator) except -1
    @cython.locals(reference=u64, entry=u64)
    cdef bint _write_late(
        self, Log log, Allocator allocator, SlotWrite write, Py_ssize_t index
    ) except -1
    @cython.locals(index=Py_ssize_t, write=SlotWrite)
    cpdef int post_lock(self, u64 state) except -1
    @cython.locals(index=Py_ssize_t, write=SlotWrite)
    cpdef bint has_locked(self) except -1
    cpdef u64 post_hold(self, Change change) except? 0xFEEDFACEDEADBEA7
    @cython.locals(index=Py_ssize_t, write=SlotWrite)
    cpdef bint validate(self) except -1
    cpdef u64 log(self) except? 0xFEEDFACEDEADBEA7
    cpdef u64 owner(self) except? 0xFEEDFACEDEADBEA7
    @cython.locals(endpoint=Endpoint, count=u64, at=u64, _=u64)
    cpdef list changes(self)
    @cython.locals(change=Change, index=Py_ssize_t, write=SlotWrite)
    cpdef int release(self, u64 state, bint committed) except -1
    @cython.locals(held=u64)
    cpdef u64 let_go_of(self, Change change, bint committed) except? 0xFEEDFACEDEADBEA7
    @cython.locals(index=Py_ssize_t, write=SlotWrite)
    cpdef bint has_applied(self) except -1
    @cython.locals(change=Change, word=u64, pairs=list)
    cpdef int unlinked(self, bint committed, list found) except -1
    @cython.locals(index=Py_ssize_t, write=SlotWrite, word=u64)
    cpdef int free_unlinked(self, Log log, bint committed) except -1
    cpdef list named(self, bint committed)

@cython.locals(made=Part)
cpdef Part part_at(Endpoint endpoint, u64 word)

@cython.locals(part=Part, change=Change, named=u64)
cpdef bint concerns(Endpoint endpoint, u64 word, u64 slot, u64 reference) except -1
