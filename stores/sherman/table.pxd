cimport cython

from limpet.shm.client cimport Client
from limpet.shm.verbs cimport u64
from limpet.stores.rtx.lllock cimport LLLocks, is_vacant
from limpet.stores.sherman.page cimport Page
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
cdef int POINTER

cdef int AGAIN
cdef int DONE
cdef int EXISTS
cdef int INSERT
cdef int MISSING
cdef int NO_MEMORY
cdef int UPDATE

cdef class Sherman(Scans):
    cdef object cursor
    cdef bint opt1

    cpdef int refuse(self, bytes key, bytes value) except -1
    @cython.locals(attempt=u64, outcome=int)
    cpdef int _change(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(sparing=u64)
    cdef int _replenish(self, bytes key, u64 size, int mode) except -1
    @cython.locals(page=Page, index=int, dropped=u64, new=u64, extent=u64, outcome=int)
    cpdef int _change_once(self, bytes key, bytes value, u64 size, int mode) except -1
    @cython.locals(page=Page)
    cdef bint _set(self, int index, bytes key, bytes value, u64 flags) except -1
    @cython.locals(client=Client, locks=LLLocks, at=u64, old=u64, state=u64, done=bint, index=int)
    cdef int _commit_leaf(self, u64 new, int news, u64 dropped) except -1
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
