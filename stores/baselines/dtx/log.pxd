from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.transactions.entry_log cimport EntryLog, LogEntry, free_entries
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.locks cimport ObjectLocks

cdef class ValueLog(EntryLog):
    cdef readonly ObjectLocks locks
    cdef readonly int place

    cpdef int take_up(self, int place, u64 link) except -1
    cpdef int named(self) except -1
    cpdef int decide(self) except -1
    cpdef int close(self, bint committed) except -1

cdef class NodeLog(ValueLog):
    cdef u64 node_size
