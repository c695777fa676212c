cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.stores.core.base cimport Store
from limpet.stores.transactions.changes cimport changes
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.staged cimport Borrowed

cdef int SAME
cdef int RENEWED
cdef int GONE
cdef Py_ssize_t FEW
# CHANGED is for others to import.
cdef int FILLED
cdef Py_ssize_t LOOKS
cdef u64 FIRST_MAX
cdef int ROUNDS_MAX

cdef class Staging:
    cpdef int stage(self, bytes key, bytes value) except -1

cdef class Visitor:
    cdef public u64 at
    cdef Visitor earlier

    cpdef bint is_still(self, u64 lock, u64 pointer) except -1
    cpdef int before(self) except -1
    cpdef object visit(self)
    cpdef bint repeats(self, Visitor other) except -1

cdef class TxKeys:
    cdef readonly Store store
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly bint ordered
    cdef list spare_uses

    cpdef object take_use(self, kind)
    cpdef int give_use(self, use) except -1
    cpdef object read(self, Reads reads, bytes key)
    cpdef object at_key(self, bytes key, Visitor visitor)
    cpdef Borrowed copied(self)
    cpdef bytes value_here(self)
    cpdef bint note(self, Reads reads, bytes key, value) except -1
    cpdef u64 busy_at(self) except? 255
    cpdef u64 tree_here(self) except? 255
    cpdef bytes look_up(self, bytes key)
    cpdef int attest(self, KeyRead read) except -1
    cpdef int post_stands(self, KeyRead read, int row) except -1
    cpdef bint stands(self, KeyRead read, int row) except -1
    cpdef int refuse(self, bytes key, bytes value) except -1
    cpdef int tidy(self, bytes key) except -1

cdef object _spare(list spares, kind)

cdef class ObjectRead:
    cdef readonly u64 at
    cdef public u64 lock
    cdef public u64 pointer
    cdef readonly object store
    cdef readonly bytes key
    cdef public bint held
    cdef public bint fixed
    cdef Visitor last
    cdef Borrowed copy
    cdef u64 copied

    cpdef int note(self, u64 at, u64 lock, u64 pointer, store, bytes key) except -1
    cpdef bint is_as(self, ObjectRead other) except -1
    cdef bint is_at(self, u64 lock, u64 pointer) except -1
    @cython.locals(copy=Borrowed)
    cdef int forget(self) except -1

cdef class KeyRead:
    cdef readonly TxKeys keys
    cdef readonly bytes key
    cdef readonly bytes value
    cdef public bint held
    cdef public u64 hash
    cdef public u64 entry
    cdef public u64 pointer
    cdef public u64 slot
    cdef public u64 word
    cdef public u64 first
    cdef public u64 second
    cdef public bytes words
    cdef public u64 ticket
    cdef public u64 entry_ticket

    cdef int describe(self, TxKeys keys, bytes key, bytes value) except -1
    cdef int forget(self) except -1

cdef class StoreReads:
    cdef readonly u64 link
    cdef readonly dict keys

cdef class ReadPlace:
    cdef readonly object store
    cdef readonly bytes key
    cdef readonly u64 at

    cdef int note(self, store, bytes key, u64 at) except -1

cdef class Reads:
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly list objects
    cdef readonly Py_ssize_t objects_count
    cdef dict places
    cdef readonly list looks
    cdef readonly list keys
    cdef readonly Py_ssize_t count
    cdef readonly list stores
    cdef public u64 epoch
    cdef public u64 counted
    cdef public u64 copies_taken
    cdef u64 drops
    cdef public object missing
    cdef readonly ObjectRead renewed
    cdef public object changed
    cdef u64[::1] pairs

    @cython.locals(index=Py_ssize_t, read=KeyRead, noted=ObjectRead)
    cpdef int clear(self) except -1
    @cython.locals(index=Py_ssize_t, read=ObjectRead)
    cpdef ObjectRead object_at(self, u64 at)
    cpdef bint has_no_object_but(self, u64 at) except -1
    @cython.locals(index=Py_ssize_t, before=ObjectRead, read=ObjectRead)
    cpdef bint note_object(self, u64 at, u64 lock, u64 pointer, store, bytes key) except -1
    @cython.locals(noted=ObjectRead)
    cpdef int keep(self, u64 at, u64 lock, TxKeys keys) except -1
    @cython.locals(noted=ObjectRead, copy=Borrowed)
    cpdef Borrowed take_copy(self, u64 at)
    @cython.locals(before=ObjectRead)
    cpdef bint note_recalled(self, u64 at, ObjectRead read) except -1
    @cython.locals(noted=ObjectRead)
    cpdef bint note_fixed(self, u64 at, u64 lock, u64 pointer, store, bytes key) except -1
    @cython.locals(read=ObjectRead)
    cpdef bint renew(self, u64 at, u64 lock) except -1
    @cython.locals(look=Visitor)
    cpdef bint _renew(self, ObjectRead read, u64 lock, u64 pointer) except -1
    @cython.locals(read=ObjectRead, other=Visitor, compared=int)
    cdef int note_look(self, Visitor look) except -1
    cpdef KeyRead next_key(self)
    @cython.locals(before=KeyRead, same=bint)
    cpdef bint note_key(self, bytes key, KeyRead read) except -1
    @cython.locals(index=Py_ssize_t, store=StoreReads, read=KeyRead)
    cpdef KeyRead key_read(self, u64 link, bytes key)
    @cython.locals(index=Py_ssize_t, read=KeyRead)
    cdef int _sort_by_store(self) except -1
    @cython.locals(store=StoreReads)
    cdef StoreReads _of_store(self, u64 link)
    cpdef bint is_of_this_epoch(self) except -1
    cdef u64 _pinned(self) except? 0
    @cython.locals(pinned=bint, _=int, keys=int, objects=int)
    cpdef bint hold(self) except -1
    @cython.locals(index=Py_ssize_t, noted=ObjectRead, read=KeyRead)
    @cython.final
    cdef int _require_there(self) except -1
    cpdef int count_first(self) except -1
    @cython.locals(count=u64)
    cpdef bint hold_unpinned(self) except -1
    @cython.locals(now=u64, count=u64)
    cpdef bint hold_again(self) except -1
    cdef bint _still_missing(self) except -1
    @cython.locals(
        endpoint=Endpoint, first=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, place=Py_ssize_t,
        waits=bint, read=ObjectRead,
    )
    cdef int _look_at_objects(self) except -1
    cdef int _look_at_keys(self, bint pinned) except -1
    @cython.locals(index=Py_ssize_t, read=KeyRead)
    cdef bint _are_held(self) except -1
    @cython.locals(
        first=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t, waits=bint, read=KeyRead
    )
    cdef bint _stand(self) except -1
    @cython.locals(index=Py_ssize_t, read=KeyRead, value=bytes, busy=u64)
    cdef bint _look_again(self) except -1
