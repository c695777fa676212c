from limpet.stores.race.growth cimport Growing

cdef class Renewing(Growing):
    pass
