from limpet.stores.race.hash_store cimport HashStore

cdef int DONE
cdef int EXISTS
cdef int FULL
cdef int MISSING
cdef int NO_MEMORY
cdef int UPDATE

cdef class Race(HashStore):
    pass
