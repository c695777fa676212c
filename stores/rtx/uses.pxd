cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.core.base cimport Store
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.reads cimport ObjectRead, Reads, TxKeys, Visitor

cdef Py_ssize_t FEW
cdef Py_ssize_t NOT_WRITTEN
cdef object CHANGED

cdef class PendingWrite:
    cdef readonly bytes key
    cdef readonly bytes value

cdef class PendingWrites:
    cdef readonly Py_ssize_t count
    cdef readonly list writes
    cdef dict places

    @cython.locals(place=Py_ssize_t, other=PendingWrite)
    cpdef Py_ssize_t place_of(self, bytes key) except -2
    @cython.locals(place=Py_ssize_t, write=PendingWrite, places=dict)
    cpdef int write(self, bytes key, bytes value) except -1
    @cython.locals(place=Py_ssize_t, write=PendingWrite, places=dict)
    cdef int _find_places(self) except -1
    @cython.locals(last=Py_ssize_t)
    cpdef int sort(self) except -1
    @cython.locals(write=PendingWrite, other=PendingWrite, key=bytes, value=bytes)
    cdef int _sort_in(self, Py_ssize_t last) except -1
    @cython.locals(place=Py_ssize_t, count=Py_ssize_t, write=PendingWrite)
    cpdef Py_ssize_t puts(self) except -1
    @cython.locals(place=Py_ssize_t, write=PendingWrite)
    cpdef int clear(self) except -1

cpdef bytes key_of(PendingWrite write)

cdef class Used:
    cdef readonly Store store
    cdef public Used following
    cdef public list others
    cdef readonly TxKeys keys
    cdef readonly PendingWrites written
    cdef readonly bint ordered
    cdef list readings
    cdef Py_ssize_t count
    cdef public bint deletes
    cdef public object reads
    cdef public object commit

    cpdef int begin(self, store) except -1
    @cython.locals(index=Py_ssize_t, reading=Reading)
    cpdef int end(self) except -1
    cdef Reading next_reading(self)
    cdef bint has(self, store) except -1

cdef class Reading(Visitor):
    cdef readonly Reads reads
    cdef readonly Used used
    cdef public bytes key
    cdef readonly dict cut
    cdef readonly u64 tree
    cdef readonly object found

    cpdef int assign(self, Reads reads, Used used, bytes key, dict cut) except -1
    cdef int forget(self) except -1
    cpdef object begin(self)
    cpdef object find(self)
    cpdef tuple item(self)
    @cython.locals(keys=object)
    cpdef object to_recheck(self)
    @cython.locals(keys=object)
    cpdef bint is_still(self, u64 lock, u64 pointer) except -1
    cpdef bint repeats(self, Visitor other) except -1
    cpdef int before(self) except -1
    @cython.locals(keys=TxKeys, there=bint)
    cpdef object visit(self)
    @cython.locals(known=ObjectRead, noted=ObjectRead)
    cdef bint _was_at_cut(self) except -1

cdef class RangeReading(Reading):
    cdef readonly int number
    cdef readonly bytes end

    cpdef object begin(self)
    cpdef object find(self)
    cpdef tuple item(self)
    cpdef bint repeats(self, Visitor other) except -1
    cpdef object to_recheck(self)
