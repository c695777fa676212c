from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.fusee.links cimport *
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.fusee.tables cimport ReplicatedTables
from limpet.stores.race.check cimport Check
from limpet.stores.race.layout cimport *
from limpet.stores.race.parameters cimport *

cdef class ReplicatedCheck(Check):
    cdef readonly ReplicatedTables tables
    cdef readonly LoggedObjects logged
    cdef readonly int replicas
    cdef readonly object view

    cpdef object keys_at(self, u64 table, u64 number, int group)
