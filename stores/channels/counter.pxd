cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.channels.atomic_var cimport AtomicVar
from limpet.stores.channels.channel cimport Channel

cdef u64 MASK

@cython.locals(beyond=cython.longlong)
cpdef signed_of(u64 word)
@cython.locals(small=cython.longlong)
cpdef u64 small_word(object number) except? 0

cdef class Counter(Channel):
    cdef readonly AtomicVar variable

    @cython.locals(word=u64)
    cpdef add(self, delta=*)
