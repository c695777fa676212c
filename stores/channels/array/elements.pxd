cimport cython

from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.states cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.array.element cimport Element
from limpet.stores.channels.array.layout cimport *
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.numbers cimport delta_word

cdef bint is_number(part) except -1

cdef class Elements(Channel):
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef readonly int ndim
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t itemsize
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t stripes
    cdef readonly u64 per
    cdef readonly Element element
    cdef bint atomic
    cdef bint adds_at_once
    cdef bint is_line
    cdef readonly u64[::1] bases

    cdef u64 _at(self, index) except? 0xFFFF
    @cython.locals(number=Py_ssize_t)
    cdef u64 _at_place(self, Py_ssize_t place) except? 0xFFFF
    @cython.locals(stripe=u64, base=u64)
    cpdef u64 at_number(self, u64 number) except? 0xFFFF
    cpdef Py_ssize_t number_of(self, index) except -1
    cdef bint _is_one(self, index) except -1
    @cython.locals(word=u64, ticket=u64)
    cdef _one(self, u64 at)
    cdef _put(self, u64 at, value)
    @cython.locals(shift=int)
    cdef u64 _post_part(self, u64 at, u64 value) except? 0xFFFF
    @cython.locals(at=u64, word=u64, before=u64, ticket=u64)
    cpdef swap(self, index, value)
    @cython.locals(at=u64, before=u64, after=u64, shift=int, bits=u64, ticket=u64)
    cpdef bint compare_and_swap(self, index, expected, desired) except -1
    cpdef add(self, index, delta=*)
    cpdef bit_and(self, index, bits)
    cpdef bit_or(self, index, bits)
    cpdef bit_xor(self, index, bits)
    @cython.locals(at=u64, word=u64, ticket=u64)
    cdef _change(self, index, int how, value)
    @cython.locals(shift=int, mask=u64, word=u64, after=u64, seen=u64, ticket=u64)
    cdef u64 _change_by_cas(self, u64 at, int how, operand) except? 0xFFFF
    cdef u64 _atomic_at(self, index) except? 0xFFFF
