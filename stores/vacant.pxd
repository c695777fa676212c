cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.status cimport *

cdef u64 NUMBER_MAX
cdef int LOW_BITS
cdef u64 LOW_MASK

cpdef bint is_vacant(u64 pointer) noexcept
@cython.locals(number=u64)
cpdef u64 vacant_word(u64 ticket) noexcept
