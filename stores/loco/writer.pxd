cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.status cimport *
from limpet.stores.loco.data_array cimport DataArray, EntryJournal
from limpet.stores.loco.layout cimport *
from limpet.stores.loco.local_index cimport LocalIndex
from limpet.stores.loco.lookup cimport KeyEntry, Lookup

cdef u64 FEW

cdef u64 claimed_state(u64 lock, u64 counter) noexcept

cdef class Writer:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Allocator allocator
    cdef readonly Lookup lookup
    cdef readonly EntryJournal journal

    @cython.locals(entry='long long', reference=u64, outcome=int, node=u64)
    cpdef int change(self, KeyEntry found, bytes key, bytes value, u64 size, int mode, bytes expected=*) except -1
    @cython.locals(entries=DataArray, state=u64, linked=u64, count=u64)
    cdef int _update(self, KeyEntry found, u64 entry, bytes key, bytes value, u64 reference) except -1
    @cython.locals(entries=DataArray, state=u64, count=u64, entry='long long')
    cdef int _insert(self, KeyEntry found, bytes key, bytes value, u64 reference) except -1
    @cython.locals(endpoint=Endpoint, index=LocalIndex, entry='long long', address=u64, there=u64, ticket=u64, counter=u64, state=u64, seen=u64, ahead=u64)
    cdef tuple _claim(self, KeyEntry found)
    @cython.locals(state=u64, linked=u64)
    cdef int _delete(self, KeyEntry found, u64 entry) except -1
    @cython.locals(link_address=u64)
    cpdef int vacate(self, KeyEntry found, u64 entry, u64 state, u64 linked) except -1
