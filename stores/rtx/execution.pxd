cimport cython

from limpet.shm.clients.client cimport Client
from limpet.stores.core.base cimport Store, as_bytes
from limpet.stores.core.feed cimport Feed
from limpet.stores.core.feed_layout cimport *
from limpet.stores.core.status cimport *
from limpet.stores.rtx.uses cimport PendingWrite, PendingWrites, RangeReading, Reading, Used
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.participant cimport go_on
from limpet.stores.transactions.reads cimport ReadPlace, Staging, TxKeys

# By the name of their module: tests replace the classes where they are made.
cimport limpet.stores.transactions.commit as committing
cimport limpet.stores.transactions.reads as read_sets

cdef object CHANGED

@cython.freelist(8)
cdef class Transaction:
    cdef readonly object _pool
    cdef readonly read_sets.Reads _reads
    cdef dict _recalled
    cdef dict _cut
    cdef bint _at_cut
    cdef public bint returned
    cdef readonly int reach
    cdef list _read_in_trees
    cdef object _handle
    cdef Used _last
    cdef Used _used
    cdef list _unfound
    cdef ReadPlace _doomed
    cdef bint _committing
    cdef bint _over

    @cython.locals(used=Used)
    cdef Used _use(self, store)
    @cython.locals(found=Used, last=Used, used=Used, keys=TxKeys, opened=Store)
    cdef Used _first_use(self, store)
    @cython.locals(used=Used, place=Py_ssize_t, reading=Reading, write=PendingWrite)
    cdef object _get(self, store, bytes key)
    cpdef object _read(self, Reading reading)
    cdef dict _present_cut(self)
    cdef object _recall(self, recalled)
    @cython.locals(
        commit=committing.Commit, outcome=int, used=Used, owner=Used, first=Used, only_deletes=bint,
        written=PendingWrites, place=Py_ssize_t, write=PendingWrite,
    )
    cpdef bint commit(self) except -1
    @cython.locals(used=Used)
    cdef Used _first_written(self)
    @cython.locals(used=Used, outcome=int, client=Client, noted=bint)
    cdef int _commit_once(self, committing.Commit commit, Used first) except -1
    @cython.locals(used=Used, outcome=int, feed=Feed, place=Py_ssize_t, write=PendingWrite)
    cdef int _run_noted(self, committing.Commit commit, Used first) except -1
    @cython.locals(
        place=Py_ssize_t, staging=Staging, written=PendingWrites, write=PendingWrite
    )
    cdef int _stage(self, Used used, committing.Commit commit) except -1
    @cython.locals(used=Used, following=Used)
    cpdef int end(self) except -1
    cpdef bint recalls(self) except -1
    cpdef bint met_while_reading(self) except -1
    cpdef bint is_doomed(self) except -1

cdef int _run(committing.Commit commit) except -1
@cython.locals(used=Used)
cdef bint _deletes_only(Used first) except -1
