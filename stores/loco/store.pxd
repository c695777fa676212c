cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.loco.data_array cimport DataArray
from limpet.stores.loco.local_index cimport LocalIndex
from limpet.stores.loco.lookup cimport Lookup
from limpet.stores.channels.lock.ticket_lock cimport TicketLock

cdef int NODE_SHIFT
cdef u64 CLAIMED
cdef u64 COUNTER_MAX
cdef int COUNTER_SHIFT
cdef int DELETE
cdef u64 DELETED
cdef u64 DELETING
cdef u64 INSERTING
cdef int LOCK_SHIFT
cdef u64 PHASE_MASK
cdef int TORN
cdef u64 UPDATING
cdef u64 VACANT
cdef u64 VALID

cdef int DONE
cdef int EXISTS
cdef int FULL
cdef int INSERT
cdef int MISSING
cdef int NO_MEMORY
cdef int UPDATE

cdef class Kvstore(Lookup):
    @cython.locals(swept=bint, outcome=int, lock=TicketLock)
    cpdef int _change(self, bytes key, bytes value, u64 size, int mode) except -1
    cpdef int node_of(self, bytes key) except -1
    @cython.locals(entry='long long', reference=u64, outcome=int)
    cdef int _change_once(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(entries=DataArray, state=u64, linked=u64, count=u64)
    cdef int _update(self, u64 entry, bytes key, bytes value, u64 reference) except -1
    @cython.locals(entries=DataArray, state=u64, count=u64, entry="long long", number=u64)
    cdef int _insert(self, bytes key, bytes value, u64 reference) except -1
    @cython.locals(endpoint=Endpoint, index=LocalIndex, lock=u64, entry='long long', address=u64, there=u64, counter=u64, state=u64)
    cdef tuple _claim(self)
    @cython.locals(state=u64)
    cdef int _delete(self, u64 entry) except -1
