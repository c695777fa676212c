cimport cython

from limpet.shm.endpoint.layout cimport NODE_SHIFT
from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Attempt, Store, as_bytes
from limpet.stores.core.feed cimport Feed
from limpet.stores.core.feed_layout cimport OPEN
from limpet.stores.core.inline cimport InlineStore
from limpet.stores.core.status cimport *
from limpet.stores.sherman.layout cimport ELSEWHERE, SPARSE, UNTIDY
from limpet.stores.sherman.leaf_writer cimport LeafWriter
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.scans cimport Scans
from limpet.stores.sherman.trees cimport Leaf
from limpet.stores.sherman.tx_trees cimport TxTrees
from limpet.stores.sherman.write_set cimport WriteSet, commit_staged, shrink
from limpet.stores.transactions.commit cimport Commit
from limpet.stores.transactions.layout cimport *
from limpet.stores.transactions.lllock cimport LLLocks
from limpet.stores.transactions.tx_object cimport TXObj

cdef int LEAVES_FEW
cdef int LEAVES_MAX
cdef int NOTED_MAX
cdef int RUN_MAX

cdef class PairRun:
    cdef readonly list keys
    cdef readonly list values
    cdef bytes last
    cdef bint ascends

    @cython.locals(found=dict)
    cpdef int sort(self) except -1

cdef class RtxSherman(InlineStore):
    cdef readonly u64 link
    cdef readonly LLLocks locks
    cdef readonly TxTrees trees
    cdef readonly Leaf leaf
    cdef readonly Scans scans
    cdef readonly LeafWriter writer
    cdef readonly object repair
    cdef readonly object tx_keys
    cdef WriteSet splits
    cdef list run_sets
    cdef bint opt1
    cdef bint opt2

    cdef WriteSet _kept(self)
    cdef bint _is_early(self, u64 size, int mode, Attempt way)
    @cython.locals(outcome=int)
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(
        run=PairRun, is_single=bint, last=bytes, keys=list, values=list, put=bytes, stored=bytes
    )
    cdef int _deal(self, pairs, list runs) except -1
    @cython.locals(
        first=Py_ssize_t, ended=Py_ssize_t, attempt=u64, leaves=int, staging=WriteSet, outcome=int,
        nodes=int, feed=Feed, noted=int, concerned=Py_ssize_t,
    )
    cdef int _put_run(self, list keys, list values) except -1
    @cython.locals(commit=Commit, routes=Routes, index=Py_ssize_t, written=TXObj, page=Page)
    cdef int _show(self, WriteSet staging) except -1
    cpdef Attempt _make_way(self, int outcome, Attempt way, bytes key, u64 size, int mode)
    cpdef int await_holder(self, u64 attempt, bint writes) except -1
    @cython.locals(reference=u64)
    cpdef u64 copy_for(self, u64 at, u64 old, u64 state) except? 0
    cpdef int copy(self, u64 old, u64 new, u64 state) except -1
