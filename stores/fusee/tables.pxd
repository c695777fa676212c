cimport cython

from limpet.shm.clients.unique_ids cimport Tickets
from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.fusee.log cimport LoggedObjects
from limpet.stores.race.old.store cimport Growing
from limpet.stores.race.old.hash_store cimport HashStore
from limpet.stores.race.old.index cimport is_vacant
from limpet.stores.vacant cimport vacant_word

cdef u64 ADDRESS_MASK
cdef u64 ENTRY
cdef u64 FROZEN
cdef u64 FROZEN_VACANT
cdef u64 MASK
cdef int NODE_SHIFT
cdef u64 OBJECT_MASK
cdef u64 OFFSET_BITS
cdef u64 PLACE_BITS
cdef u64 REPLICAS_ROW
cdef u64 REPLICATED
cdef u64 VIEW

cpdef u64 identity(u64 word) noexcept

cdef class ReplicatedTables(Growing):
    cdef readonly LoggedObjects logged
    cdef readonly u64 number_of_store
    cdef readonly object view
    cdef readonly Tickets tickets
    cdef u64[::1] bases
    cdef u64[::1] counts
    cdef u64[::1] steps
    cdef u64[::1] lives
    cdef u64 head
    cdef u64 backups
    cdef u64 viewed
    cdef bint looked
    cdef bint glanced

    cdef int _place(self, u64 hashed) except -1
    cdef int _turn_to_head(self, u64 address) noexcept
    cdef u64 _base_of(self, u64 pointer) noexcept
    cdef u64 _primary(self, u64 address) noexcept
    cdef int _agree(self) except -1
    cpdef int _renew(self) except -1
    cdef int _choose_to_read(self, bytes key) except -1
    cdef int _agree_to_read(self) except -1
    cpdef int _glance(self) except -1
    cpdef bint _look(self) except -1
    cpdef bint _outlive(self, int node) except -1
    @cython.locals(row=u64)
    cdef u64 _backup(self, u64 slot, u64 k) noexcept
    cdef u64 _replica(self, u64 address, u64 k) noexcept
    @cython.locals(place=u64)
    cdef u64 _home(self, u64 slot) noexcept
    cdef u64 _go_to(self, u64 home) noexcept
    @cython.locals(place=u64)
    cdef u64 _home_of_entry(self, u64 entry) noexcept
    cdef u64 _ticket(self) except 0
    @cython.locals(row=u64, offset=u64, backups=int, last=u64, decided=u64, k=int, replica=u64, there=u64, was=u64)
    cdef u64 _advance(self, u64 place, u64 word, u64 desired) except? 0
    cpdef bint resolve(self, u64 reference, u64 home, bint hurry) except -1
