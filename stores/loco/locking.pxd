cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.channels.lock.ticket_lock cimport TicketLock
from limpet.stores.core.base cimport Store
from limpet.stores.loco.key_locks cimport KeyLocks
from limpet.stores.loco.layout cimport *
from limpet.stores.loco.local_index cimport LocalIndex
from limpet.stores.loco.lookup cimport KeyEntry, Lookup
from limpet.stores.loco.parameters cimport *
from limpet.stores.loco.writer cimport Writer

cdef class Locking:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Lookup lookup
    cdef readonly Writer writer
    cdef readonly u64 lock_count
    cdef readonly u64 locks_at
    cdef readonly u64 record_size
    cdef readonly u64 journal_at
    cdef readonly KeyLocks key_locks
    cdef readonly list locks
    cdef public u64 repairs

    cpdef TicketLock lock(self, u64 table, u64 number)
    @cython.locals(base=u64)
    cpdef u64 lock_at(self, u64 table, u64 number) except? 0
    cpdef u64 journal_of(self, u64 table, u64 number) except? 0
    cpdef int enter_journal(self, u64 table, u64 number) except -1
    @cython.locals(attempt=int, ready=bint, lock=TicketLock)
    cdef TicketLock enter(self, Store store, KeyEntry found, bytes key)
    cpdef int _refresh(self, KeyEntry found, bytes key) except -1
    @cython.locals(endpoint=Endpoint, ticket=u64)
    cdef int leave(self, TicketLock lock) except -1
    @cython.locals(endpoint=Endpoint, held=bint, lock=TicketLock, journal=u64, ticket=u64, word=u64)
    cdef TicketLock _enter_with_lock(self, Store store, KeyEntry found, bytes key)
    @cython.locals(ticket=u64)
    cdef int _read(self, KeyEntry found) except -1
    cdef TicketLock _enter_held(self, Store store, KeyEntry found, TicketLock lock, bytes key)
    @cython.locals(index=LocalIndex, good=bint, near=bint)
    cdef bint _begin(self, KeyEntry found, int attempt) except -1
    @cython.locals(found=KeyEntry, scope=bint, lock=TicketLock)
    cdef bint _mend_once(self, Store store, u64 table, u64 number, int attempt) except -1
