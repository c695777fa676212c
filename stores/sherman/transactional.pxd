cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.rtx.lllock cimport LLLocks, is_vacant
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.scans cimport Scans

cdef u64 ADDRESS_MASK
cdef u64 LOCKED
cdef int NODE_SHIFT
cdef int DELETE
cdef int LOGGED_WRITE
cdef int SHRINK
cdef int SHRINKS_MAX
cdef int SPARED_BLOCKS
cdef int SPARSE
cdef u64 EXTENT
cdef u64 EXTENT_PAIR
cdef u64 PLACE_MASK
cdef int PLACE_SHIFT
cdef int ELSEWHERE
cdef int POINTER

cdef int AGAIN
cdef int DONE
cdef int EXISTS
cdef int INSERT
cdef int MISSING
cdef int NO_MEMORY
cdef int PUT
cdef int UPDATE

cdef class Sherman(Scans):
    cdef object cursor
    cdef bint opt1
    cdef bint opt2
    cdef u64 new
    cdef u64 state

    cpdef int refuse(self, bytes key, bytes value) except -1
    @cython.locals(attempt=u64, outcome=int, early=bint)
    cpdef int _change(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(sparing=u64)
    @cython.locals(page=Page, index=int, dropped=u64, new=u64, extent=u64, outcome=int)
    cpdef int _change_once(self, bytes key, bytes value, u64 size, int mode, bint early) except -1
    @cython.locals(page=Page)
    cdef bint _set(self, int index, bytes key, bytes value, u64 flags) except -1
    @cython.locals(state=u64, done=bint)
    cdef int _commit_leaf(self, u64 new, int news, u64 dropped) except -1
    @cython.locals(client=Client, at=u64, old=u64)
    cdef bint _lock_leaf(self, u64 state, u64 dropped) except -1
    @cython.locals(done=bint)
    cdef bint _install(self, u64 new, u64 state) except -1
    @cython.locals(client=Client, index=int)
    cdef int _settle_hand(self, int news, bint done) except -1
    @cython.locals(routes=Routes, hashed=u64, hint=u64, at=u64, lock=u64, pointer=u64, done=bint)
    cdef int _lock_early(self, bytes key) except -1
    @cython.locals(page=Page, node=u64, place=int)
    cdef int _read_locked(self, bytes key, u64 hint) except -1
    @cython.locals(page=Page, index=int, dropped=u64, outcome=int, done=int)
    cdef int _change_locked(self, bytes key, bytes value, int mode) except -1
    @cython.locals(outcome=int)
    cpdef int _with_log(self, bytes key, bytes value, int mode) except -1
    @cython.locals(outcome=int)
    cpdef int _logged_once(self, commit, bytes key, bytes value, int mode) except -1
    @cython.locals(page=Page)
    cpdef bint _is_sparse(self) except -1
    @cython.locals(lane=bint, sparse=bint)
    cpdef int tidy(self, bytes key) except -1
    @cython.locals(lane=bint, outcome=int, attempt=u64)
    cpdef int _shrink(self, bytes key) except -1
