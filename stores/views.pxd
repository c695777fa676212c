cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.base cimport Store

cdef int NODE_SHIFT

cdef class Block:
    cdef readonly Store store
    cdef readonly bytes key
    cdef u64 ident
    cdef u64 record
    cdef int node
    cdef object value
    cdef object lent

    cdef int _require_new(self) except -1
    cdef _lend(self, u64 record, u64 address, u64 size, bint writable)
    cdef bint _take_back(self) except -1
    cdef bint _in_use(self) except -1
    cdef int _let_go(self) except -1

cdef class View(Block):
    pass

cdef class Reservation(Block):
    cdef u64 size
    cdef u64 reference

@cython.locals(block=Block)
cpdef int settle_late(object client) except -1

cdef int disown(Block block) except -1
