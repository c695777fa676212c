from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.baselines.dtx.log cimport ValueLog

cdef u64 ADDRESS_MASK

cdef class NodeLog(ValueLog):
    cdef u64 node_size
