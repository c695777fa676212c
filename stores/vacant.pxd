cimport cython

from limpet.shm.endpoint.verbs cimport u64

cdef u64 NUMBER_MAX
cdef int LOW_BITS
cdef u64 LOW_MASK
cdef u64 VACANT_CLASS

cpdef bint is_vacant(u64 pointer) noexcept
@cython.locals(number=u64)
cpdef u64 vacant_word(u64 ticket) noexcept
