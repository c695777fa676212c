cimport cython

from limpet.stores.channels.channel cimport Channel
from limpet.stores.channels.ring.layout cimport *
from limpet.stores.channels.ring.messages cimport Reader, Writer
from limpet.stores.channels.waiting cimport Wait, Waiting
from limpet.stores.core.status cimport *

cdef class RingBuffer(Channel):
    cdef readonly object encode
    cdef readonly object decode
    cdef readonly unsigned long long size
    cdef readonly Waiting news
    cdef readonly Waiting room
    cdef readonly object acks
    cdef readonly Writer writer
    cdef readonly Reader reader
    cdef readonly bint closed

    cdef int _send(self, bytes data, Wait wait) except -1
    cdef int _check_open(self) except -1
    cdef bytes _receive(self, Wait wait)
