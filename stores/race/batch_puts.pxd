cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.base cimport Window
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.batch cimport Batch, BatchSearch
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.layout cimport *
from limpet.stores.race.slots cimport Slots

cdef class BatchPuts:
    cdef readonly BatchSearch search
    cdef readonly Index index
    cdef readonly Objects objects
    cdef readonly Slots slots
    cdef readonly Allocator allocator
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly int replicas
    cdef public Batch batch

    @cython.locals(batch=Batch, end=Py_ssize_t)
    cpdef Py_ssize_t put(self, pairs, Py_ssize_t start, list left) except -1
    cdef bint _prepare(self, Batch batch, Window window) except -1
    @cython.locals(batch=Batch, start=Py_ssize_t, least=int, ready=bint)
    cpdef int run(self, Window window) except -1
    @cython.locals(row=int)
    cdef int _change(self, Batch batch, Window window) except -1
    @cython.locals(batch=Batch, end=Py_ssize_t, ready=bint)
    cpdef Py_ssize_t delete(
        self, list keys, Py_ssize_t start, list left, list missing
    ) except -1
    @cython.locals(row=int, place=Place, others=bint)
    cpdef bint pass_over_missing(self, Batch batch, Py_ssize_t start, list missing) except -1
    @cython.locals(
        index=Index, search=BatchSearch, row=int, count=int, total=int, place=Place, slot=u64,
        word=u64, key=bytes, values=list,
    )
    cpdef int find_all(self, Batch batch, Window window) except -1
    @cython.locals(index=Index, room=int)
    cdef int _find_room(self, Place place, Batch batch, int row) except -1
    @cython.locals(
        allocator=Allocator, slots=Slots, row=int, count=int, reference=u64, link=u64,
    )
    cpdef int make_all(self, Batch batch) except -1
    cpdef int log_all(self, Batch batch) except -1
    @cython.locals(row=int)
    cpdef int write_all(self, Batch batch) except -1
    cpdef int change_all(self, Batch batch, Window window) except -1
