from limpet.shm.verbs cimport hash64, u64
from limpet.stores.race.growth cimport Growing

cdef class Renewing(Growing):
    pass
