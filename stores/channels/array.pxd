cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.counter cimport signed_of, small_word

cdef u64 MASK
cdef int WORD

@cython.final
cdef class Cell:
    cdef double[::1] doubles
    cdef u64[::1] words

cdef Cell CELL

cdef double double_of(Cell cell, u64 word) noexcept
cdef u64 word_of(Cell cell, double number) noexcept

cdef class Array(Channel):
    cdef readonly Py_ssize_t length
    cdef readonly str typecode
    cdef bint signs
    cdef bint doubles

    @cython.locals(place=Py_ssize_t)
    cdef u64 _at(self, index) except? 0xFFFF
    cdef _number(self, u64 word)
    cdef u64 _word(self, value) except? 0xFFFF
    @cython.locals(at=u64, word=u64)
    cdef _one(self, index)
    @cython.locals(at=u64, word=u64)
    cdef _put(self, index, value)
    cdef list _slice(self, part)
    @cython.locals(at=u64, word=u64)
    cdef _store(self, list spots, list values)
    @cython.locals(at=u64, word=u64, after=u64)
    cpdef add(self, index, delta=*)
    @cython.locals(before=u64)
    cdef double _add_double(self, u64 at, double delta) except? -1
