from limpet.stores.race.old.store cimport Growing

cdef class Renewing(Growing):
    pass
