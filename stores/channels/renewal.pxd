from limpet.stores.race.store cimport Growing

cdef class Renewing(Growing):
    pass
