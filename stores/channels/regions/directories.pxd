from limpet.shm.endpoint.states cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.race.layout cimport *
from limpet.stores.race.store cimport Race

cdef class Directories:
    cdef readonly object pool
    cdef readonly Race race
    cdef readonly int count

    cdef u64 _number_at(self, u64 address)
