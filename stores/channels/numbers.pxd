cimport cython

from limpet.shm.endpoint.verbs cimport fits_word, u64
from limpet.stores.channels.layout cimport *

@cython.locals(beyond=cython.longlong)
cpdef signed_of(u64 word)
@cython.locals(small=cython.longlong)
cpdef u64 wrapped(number) except? 0xFFFF
@cython.locals(small=cython.longlong)
cpdef u64 signed_word(number) except? 0xFFFF
@cython.locals(small=cython.longlong)
cpdef u64 delta_word(number) except? 0xFFFF
