from limpet.stores.core.feed_layout cimport OPEN
from limpet.stores.core.status cimport *
from limpet.stores.race.hash_store cimport HashStore

cdef class Race(HashStore):
    pass
