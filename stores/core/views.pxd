cimport cython

from limpet.shm.clients.holds cimport Holds
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport RECORDS_COUNT
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport REFERENCE_MASK
from limpet.stores.core.base cimport Store

cdef class Loan:
    cdef readonly Store store
    cdef object block
    cdef bint over
    cdef object value
    cdef object lent
    cdef int node

    cdef object begin(self, object lent)
    cdef bint take_back(self) except -1
    @cython.locals(holds=Holds)
    cdef bint end(self) except -1

cdef class Block:
    cdef readonly Store store
    cdef readonly bytes key
    cdef u64 size
    cdef u64 reference
    cdef Loan loan
    cdef object __weakref__

    cdef int _require_new(self) except -1
    cdef object _begin(self, Loan loan)

cdef class ValueView(Block):
    @cython.locals(loan=Loan)
    cpdef object memory(self)
    @cython.locals(store=Store, endpoint=Endpoint, address=u64, size=u64, reference=u64)
    cdef object _keep(self, Loan loan)
    @cython.locals(address=u64, size=u64)
    cdef object _begin(self, Loan loan)

cdef class Reservation(Block):
    cdef int _link(self, Loan loan) except -1

cdef set _loans

@cython.locals(loan=Loan)
cpdef int settle_late(object client) except -1

cdef int disown(Loan loan) except -1
