cimport cython

from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.layout cimport NODE_SHIFT
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64, words_bytes
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.inline cimport InlineStore
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects, is_vacant
from limpet.stores.core.status cimport *
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf, Trees, leaf_of
from limpet.stores.sherman.tx_trees cimport TxTrees
from limpet.stores.transactions.layout cimport EXTENT_PAIR, LOCKED, OBJECT_SIZE
from limpet.stores.transactions.reads cimport Reads, Staging
from limpet.stores.transactions.staged cimport Staged, StagedNode

cdef int ASIDE_MAX
cdef u64 GATHERED
cdef u64 GATHERED_MAX
cdef u64 KEY_MOST
cdef Py_ssize_t LEAVES_LEAST
cdef Py_ssize_t NODES_BESIDE
cdef double MERGED_SHARE
cdef int NO_PLACE
cdef int ROUNDS_MAX
cdef int SHRINKS_MAX

cdef class TreeWay(Attempt):
    cdef public object commit

    cpdef TreeWay at_once(self)
    cpdef TreeWay ended(self, int outcome)

@cython.locals(commit=Staged, outcome=int)
cpdef int commit_staged(store, WriteSet staging, stage) except -1

@cython.locals(
    endpoint=Endpoint, scope=bint, staging=WriteSet, attempt=int, outcome=int
)
cpdef shrink(store, bytes key, WriteSet kept=*)

cdef class WriteSet(Staging):
    cdef readonly InlineStore store
    cdef readonly Trees trees
    cdef readonly Staged commit
    cdef readonly Endpoint endpoint
    cdef public bytes key
    cdef public u64 tree
    cdef readonly Py_ssize_t ended
    cdef readonly Py_ssize_t wanted
    cdef readonly bint sparse
    cdef Page gathered
    cdef list made
    cdef u64[::1] word
    cdef u64[::1] pair

    @cython.locals(leaf=Leaf)
    cpdef int stage(self, bytes key, bytes value, int mode=*) except -1
    cpdef int stage_read(self, Leaf leaf, bytes key, bytes value, int mode) except -1
    cdef int _begin_at(self, Leaf leaf) except -1
    @cython.locals(page=Page, at=u64, index=int, flags=u64)
    cdef int _change(self, Leaf leaf, bytes key, bytes value, int mode) except -1
    @cython.locals(
        page=Page, store=InlineStore, high=bytes, count=Py_ssize_t, room=u64, likely=Py_ssize_t,
        wanted=Py_ssize_t, entries=Page, at_end=bint, size=u64, key=bytes, value=bytes, index=int,
    )
    cpdef int stage_run(
        self, Leaf leaf, list keys, list values, Py_ssize_t first, Py_ssize_t leaves
    ) except -1
    cdef int _drop_extent(self, Page page, int index) except -1
    @cython.locals(reads=Reads)
    cpdef bint _read_as_absent(self, Leaf leaf, bytes key) except -1
    @cython.locals(entries=Page, begin=int)
    cpdef int _put(self, u64 at, Page page, int index, bytes key, bytes value, u64 flags) except -1
    @cython.locals(low=bytes, high=bytes)
    cdef int _put_all(self, u64 at, Page page, Page entries, bint appended) except -1
    @cython.locals(size=u64, gathered=Page)
    cdef Page _gather(self, Page page, u64 room)
    cpdef int _write(self, u64 at, Page page) except -1
    @cython.locals(objects=Objects, node=u64, reference=u64)
    cpdef u64 new_extent(self, allocator, u64 at, bytes key, bytes value) except? 0
    @cython.final
    cdef bytes _link(self, u64 at)
    @cython.locals(tree=u64, page=Page)
    cpdef place(self, u64 at, bytes key, u64 reference)
    @cython.locals(
        root=u64, room=u64, low=bytes, high=bytes, sibling=u64, level=u64, ends=list,
        nodes=list, lows=list, index=Py_ssize_t, begin=int,
    )
    cpdef int _split(self, u64 at, Page page, Page entries, bint appended) except -1
    @cython.locals(
        high=u64, room=u64, added=u64, total=u64, passed=u64, begin=u64, each=u64, border=u64,
        left=u64,
    )
    cdef int _middle(self, Page page, u64 index, bytes key, u64 size) except -1
    @cython.locals(
        above=bytes, below=bytes, low=bytes, border=bytes, made=u64, level=u64, first=Page,
        second=Page,
    )
    cdef int _halve(
        self, u64 at, Page page, int index, bytes key, bytes value, u64 flags, int begin
    ) except -1
    @cython.locals(above=Page, entries=Page, index=Py_ssize_t)
    cdef int _raise_root(self, u64 level, list lows, list nodes, bint appended) except -1
    @cython.locals(
        leaf=Leaf, at=u64, page=Page, entries=Page, index=int, place=Py_ssize_t, at_end=bint
    )
    cpdef int link_above(self, u64 level, list lows, list nodes) except -1
    @cython.locals(page=Page)
    cdef int _make(
        self, u64 at, u64 level, bytes low, bytes high, u64 sibling, Page entries, int begin, int end
    ) except -1
    @cython.locals(
        trees=TxTrees, root=u64, at=u64, lock=u64, pointer=u64, number=u64, _=u64, scope=bint
    )
    cpdef u64 _vacant(self) except? 0
    @cython.locals(trees=Trees, level=int, low=bytes, at=u64, routes=Routes)
    cpdef int show_made(self) except -1
    @cython.locals(node=StagedNode, page=Page)
    cpdef int show_merged(self, Routes routes) except -1
    @cython.locals(commit=Staged, outcome=int)
    cpdef int run_shrink(self, bytes key) except -1
    cpdef int shrink(self, bytes key) except -1
    @cython.locals(
        at=u64, page=Page, above=Page, first=Page, second=Page, root=u64, inner=Leaf, parent=u64,
        index=int, left=int, first_at=u64, second_at=u64, low=bytes, high=bytes, sibling=u64,
        used=u64, is_last=bint, merged=Page,
    )
    cpdef int _merge(self, Leaf leaf, bytes key) except -1
    @cython.locals(root=u64, ticket=u64)
    cpdef int _vacate_root(self, Page page) except -1
    @cython.locals(
        trees=Trees, hashed=u64, routes=Routes, hint=u64, known=u64, leaf=Leaf, place=int
    )
    cpdef Leaf _leaf(self, bytes key)
    @cython.locals(trees=Trees, root=u64, parents=Routes, known=u64, leaf=Leaf)
    cpdef Leaf _inner(self, bytes key, u64 level)
    @cython.locals(root=u64, rounds=int, aside=int, descended=bint, leaf=Leaf, page=Page)
    cpdef Leaf _walk(self, bytes key, u64 level, u64 at, int place)
    @cython.locals(page=Page, reads=Reads, leaf=Leaf, kept=Leaf)
    cpdef Leaf _read(self, u64 at)
    @cython.locals(leaf=Leaf)
    cdef Leaf _blank(self)
    @cython.locals(leaf=Leaf)
    cpdef Leaf _read_copy(self, u64 at)

@cython.locals(leaf=Leaf)
cpdef Leaf as_staged(Page page, tree, at)

@cython.locals(ends=list, used=u64, begin=int, index=int, after=u64)
cdef list _filled(Page entries, u64 room, u64 low)
@cython.locals(count=u64, ends=list)
cdef list _evened(Page entries, u64 room, u64 low, u64 high)
@cython.locals(
    ends=list, total=u64, passed=u64, begin=u64, begun=u64, pieces=u64, fence=u64, index=u64,
    size=u64, after=u64,
)
cdef list _cut(Page entries, u64 count, u64 room, u64 low, u64 high)
