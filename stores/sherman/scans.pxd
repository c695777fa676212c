cimport cython

from limpet.shm.endpoint.verbs cimport hash64, u64
from limpet.stores.core.base cimport as_bytes
from limpet.stores.core.inline cimport InlineStore, Step
from limpet.stores.core.status cimport *
from limpet.stores.sherman.layout cimport *
from limpet.stores.sherman.page cimport Page
from limpet.stores.sherman.routes cimport Routes
from limpet.stores.sherman.trees cimport Leaf, Trees

cdef int AHEAD

cdef class Visit(Step):
    cdef Trees trees
    cdef Leaf leaf
    cdef u64 tree
    cdef bytes key
    cdef object work

    cpdef int once(self) except -1

cdef class ScanPart(Step):
    cdef Trees trees
    cdef Leaf leaf
    cdef u64 tree
    cdef bint ended

cdef class Range(ScanPart):
    cdef readonly bytes start
    cdef bytes high
    cdef u64 known
    cdef u64 ahead
    cdef Py_ssize_t count
    cdef Py_ssize_t wanted

    @cython.locals(
        start=bytes, hashed=u64, found=list, count=Py_ssize_t, most=Py_ssize_t, trees=Trees,
        leaf=Leaf,
    )
    cpdef int once(self) except -1
    @cython.locals(leaf=Leaf, page=Page, routes=Routes)
    cdef bint _is_first(self, bytes start) except -1
    @cython.locals(routes=Routes, hint=u64, _=int)
    cdef int _look_ahead(self, u64 hashed) except -1
    cdef int _fetch(self, Routes routes) except -1
    @cython.locals(
        trees=Trees, leaf=Leaf, page=Page, routes=Routes, found=list, row=Py_ssize_t, following=u64
    )
    cdef list _take(self, Py_ssize_t count)

cdef class RangeBelow(ScanPart):
    cdef bytes low
    cdef bytes end

    @cython.locals(page=Page, found=list, begins=bytes)
    cpdef int once(self) except -1

@cython.locals(page=Page, index=int, end=int, slot=u64)
cdef bytes append_range(Trees trees, Leaf leaf, bytes high, list found)

cdef class Scans:
    cdef readonly InlineStore store
    cdef readonly Trees trees
    cdef readonly Leaf leaf

    cpdef tuple range_here(self, bytes high)

cdef class Merge:
    cdef InlineStore store
    cdef list sources
    cdef bint reverse

    @cython.locals(source=Source, sources=list, found=list, first=Source, second=Source)
    cpdef list batch(self)
    @cython.locals(index=Py_ssize_t)
    cdef int _order(self, list sources) except -1
    @cython.locals(sources=list, moved=Source, after=Source)
    cdef int _sink(self, Py_ssize_t index) except -1

cdef class Source:
    cdef ScanPart part
    cdef list pairs
    cdef Py_ssize_t place
    cdef bytes key

    cdef bint more(self, InlineStore store) except -1
    cdef list rest(self)
    @cython.locals(pairs=list, place=Py_ssize_t, pair=tuple, key=bytes)
    cdef bint take(self, bytes bound, bint reverse, list found) except -1
