from limpet.stores.fusee.tables cimport ReplicatedTables

cdef class RestoredTables(ReplicatedTables):
    pass
