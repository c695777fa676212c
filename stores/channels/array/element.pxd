cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.array.layout cimport *
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.numbers cimport delta_word, signed_of, signed_word

@cython.final
cdef class Cell:
    cdef double[::1] doubles
    cdef float[::1] floats
    cdef u64[::1] words

@cython.final
cdef class Element:
    cdef readonly object dtype
    cdef readonly int size
    cdef readonly int kind
    cdef readonly u64 mask
    cdef readonly int sign
    cdef readonly long long span
    cdef readonly object low
    cdef readonly object high
    cdef Cell cell

    @cython.locals(number=cython.longlong)
    cpdef decode(self, u64 word)
    cpdef u64 encode(self, value) except? 0xFFFF
    cpdef operand(self, int how, value)
    @cython.locals(bits=u64)
    cpdef u64 after(self, int how, u64 word, operand) except? 0xFFFF
