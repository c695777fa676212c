cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.endpoint.layout cimport *
from limpet.shm.endpoint.slots cimport *
from limpet.shm.endpoint.states cimport *
from limpet.shm.endpoint.verbs cimport Endpoint, u64
from limpet.shm.endpoint.words cimport REPLICATED

cdef u64 EPOCH_MAX

cdef class Client:
    cdef readonly Endpoint endpoint
    cdef readonly Heap heap
    cdef object rejoin
    cdef readonly bint remotely_fenced
    cdef u64[::1] references
    cdef u64[::1] link_addresses
    cdef u64[::1] pairs
    cdef readonly u64 ident
    cdef readonly u64 slot
    cdef readonly u64 word
    cdef public u64 sequence
    cdef readonly int held
    cdef readonly u64 epoch
    cdef u64 era
    cdef u64 base
    cdef readonly u64 drops
    cdef public object lasting
    cdef public object await_copies
    cdef public object wait_stable
    cdef public object know_nodes
    cdef public object resigned
    cdef readonly bint has_resigned
    cdef readonly object holds
    cdef object __weakref__

    cpdef int assume(self, u64 ident, u64 slot, u64 word) except -1
    @cython.locals(done=bint)
    cpdef int begin(self) except -1
    cpdef int end(self) except -1
    cpdef int rest(self) except -1
    @cython.locals(endpoint=Endpoint)
    cpdef int pin(self) except -1
    @cython.final
    @cython.locals(endpoint=Endpoint, epoch=u64, drops=u64)
    cdef int _pin_anew(self) except -1
    cpdef pinned(self, work)
    @cython.locals(own=u64)
    cpdef int share_pin(self, u64 pin, u64 era) except -1
    @cython.locals(pin=u64, counter=u64)
    cpdef int go_on(self) except -1
    cdef int disown(self) except -1
    @cython.locals(done=bint)
    cpdef int unpin(self) except -1
    @cython.final
    cdef int _unpin_anyhow(self) except -1
    @cython.final
    cdef int _resign(self) except -1
    @cython.final
    @cython.locals(cut=bint)
    cdef int _resolve_journal(self) except -1
    @cython.locals(scope=bint, done=bint)
    cpdef exclusively(self, work)
    @cython.locals(pinned=bint)
    cpdef int enter(self) except -1
    cpdef int leave(self) except -1
    cpdef int note_frame(self) except -1
    cpdef int cut_off(self) except -1
    @cython.locals(index=int)
    cpdef int persist_links(self) except -1
    @cython.locals(index=int)
    cpdef int settle(self) except -1
    @cython.locals(left=u64, settled=bint)
    cpdef int quit(self, bint complete) except -1
    @cython.locals(index=int, pair=u64)
    cpdef int log(self, u64 reference, u64 link_address) except -1
    @cython.locals(first=int, index=int)
    cpdef int log_all(self, u64[::1] references, u64[::1] links, int count) except -1
    @cython.locals(index=int)
    cpdef int drop_all(self, int first, int count) except -1
    @cython.final
    @cython.locals(index=int)
    cdef int _gather_addresses(self, int first, int count) except -1
    cpdef int retarget(self, int index, u64 link_address) except -1
    cpdef int drop(self, int index) except -1
    @cython.locals(last=int)
    cpdef int drop_from(self, int index) except -1
    @cython.locals(journal=u64)
    cpdef int exchange(self, int new, int old) except -1
    cpdef int release(self, int index) except -1
