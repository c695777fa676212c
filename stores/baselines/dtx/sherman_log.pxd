from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.baselines.dtx.log cimport ValueLog

cdef class NodeLog(ValueLog):
    cdef u64 node_size
