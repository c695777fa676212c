cimport cython

from limpet.shm.endpoint.verbs cimport fits_word, u64

cdef u64 MASK

@cython.locals(beyond=cython.longlong)
cpdef signed_of(u64 word)
@cython.locals(small=cython.longlong)
cpdef u64 wrapped(number) except? 0xFFFF
@cython.locals(small=cython.longlong)
cpdef u64 signed_word(number) except? 0xFFFF
@cython.locals(small=cython.longlong)
cpdef u64 delta_word(number) except? 0xFFFF
