cimport cython
# By the name of their module: tests replace the classes where they are made.
cimport limpet.stores.rtx.commit as committing
cimport limpet.stores.rtx.reads as read_sets

from limpet.shm.clients.client cimport Client
from limpet.stores.base cimport Store, as_bytes
from limpet.stores.rtx.participant cimport go_on
from limpet.stores.rtx.pending cimport PendingWrites
from limpet.stores.rtx.reads cimport ReadPlace, Staging, TxKeys, Visitor

from limpet.shm.endpoint.verbs cimport u64

cdef int AGAIN
cdef int DONE
cdef Py_ssize_t FEW
cdef int FULL
cdef int NO_MEMORY
cdef int SPARED_BLOCKS

cdef class Used:
    cdef readonly Store store
    cdef public list others
    cdef readonly TxKeys keys
    cdef readonly PendingWrites written
    cdef readonly bint ordered
    cdef readonly Reading reading
    cdef list readings
    cdef Py_ssize_t count
    cdef public bint deletes

    cdef int begin(self, Transaction transaction, store) except -1
    @cython.locals(index=Py_ssize_t, reading=Reading)
    cdef int end(self) except -1
    cdef Reading next_reading(self)
    cdef bint has(self, store) except -1

cdef class Reading(Visitor):
    cdef readonly Transaction transaction
    cdef readonly Used used
    cdef public bytes key
    cdef readonly u64 tree
    cdef readonly u64 at

    cpdef int be(self, Transaction transaction, Used used, bytes key) except -1
    cdef int forget(self) except -1
    cpdef object begin(self)
    cpdef object find(self)
    cpdef tuple item(self)
    @cython.locals(keys=object)
    cpdef object look(self)
    cpdef int before(self) except -1
    cpdef object visit(self)

cdef class RangeReading(Reading):
    cdef readonly int number
    cdef readonly bytes end

    cpdef object begin(self)
    cpdef object find(self)
    cpdef tuple item(self)
    cpdef object look(self)

cdef class Transaction:
    cdef readonly object _pool
    cdef readonly read_sets.Reads _reads
    cdef dict _recalled
    cdef dict _cut
    cdef bint _at_cut
    cdef readonly int reach
    cdef list _read_in_trees
    cdef object _handle
    cdef Used _last
    cdef list _stores
    cdef list _unfound
    cdef ReadPlace _doomed
    cdef bint _committing
    cdef bint _over

    @cython.locals(used=Used)
    cdef Used _use(self, store)
    @cython.locals(found=Used, used=Used, keys=TxKeys)
    cdef Used _first_use(self, store)
    @cython.locals(used=Used, place=Py_ssize_t, reading=Reading)
    cdef object _get(self, store, bytes key)
    cpdef object _read(self, Reading reading)
    cdef object _recall(self, recalled)
    cdef int count_first(self) except -1
    cpdef int check(self, Reading reading, found) except -1
    cdef int check_key(self, Reading reading, found) except -1
    cpdef bint _holds(self, Used used, bytes key, found) except -1
    @cython.locals(
        commit=committing.Commit, outcome=int, used=Used, first=Used, only_deletes=bint,
        written=PendingWrites, place=Py_ssize_t,
    )
    cpdef bint commit(self) except -1
    @cython.locals(used=Used)
    cdef Used _first_written(self)
    @cython.locals(used=Used, outcome=int, client=Client)
    cdef int _commit_once(self, committing.Commit commit, Used first) except -1
    @cython.locals(place=Py_ssize_t, key=bytes, staging=Staging, written=PendingWrites)
    cdef int _stage(self, Used used, committing.Commit commit) except -1
    @cython.locals(first=Used, used=Used)
    cpdef int end(self) except -1
    cpdef bint recalls(self) except -1
    cpdef bint met_while_reading(self) except -1
    cpdef bint is_doomed(self) except -1

@cython.locals(used=Used, puts=Py_ssize_t)
cdef bint _deletes_only(list written) except -1
