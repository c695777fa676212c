from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.core.status cimport *

cdef class Race(HashStore):
    pass
