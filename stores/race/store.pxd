from limpet.stores.race.hash_store cimport HashStore

cdef class Race(HashStore):
    pass
