cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.atomic_var cimport AtomicVar
from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.layout cimport *
from limpet.stores.channels.numbers cimport signed_of, signed_word

cdef class Counter(Channel):
    cdef readonly AtomicVar variable

    @cython.locals(word=u64)
    cpdef add(self, delta=*)
    cpdef set(self, value)
