cimport cython

from limpet.shm.alloc.allocator cimport Allocator
from limpet.shm.clients.client cimport Client
from limpet.shm.endpoint.slots cimport INCARNATION_BITS
from limpet.shm.endpoint.verbs cimport Endpoint, hash64, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.index cimport Index, Place, is_frozen, is_split, is_valid
from limpet.stores.race.layout cimport *
from limpet.stores.race.parameters cimport *

cdef Py_ssize_t BUCKETS
cdef Py_ssize_t BUCKET_WORDS
cdef Py_ssize_t PART
cdef Py_ssize_t READERS

cdef class Splitter:
    cdef readonly object pool
    cdef readonly Index index
    cdef readonly object parameters
    cdef readonly int replicas
    cdef readonly Client client
    cdef readonly Endpoint endpoint
    cdef readonly Allocator allocator
    cdef readonly Objects objects
    cdef public int objects_needed
    cdef public u64 exactly
    cdef readonly u64[::1] blank
    cdef readonly u64[::1] words
    cdef u64[::1] wanted
    cdef u64[::1] tickets
    cdef u64[::1] indices
    cdef list readers
    cdef public u64 cramped

    @cython.locals(index=Index, enough=bint)
    cpdef int grow(self, Place place, bytes key) except -1
    cpdef int begin(self, Place place) except -1
    @cython.locals(node=u64)
    cpdef int find_memory(self, bytes key, int objects, bint update) except -1
    cpdef int wait(self, u64 busy, u64 table, u64 attempt) except -1
    @cython.locals(old=u64, first=u64, second=u64)
    cpdef int split(self, Place place) except -1
    @cython.locals(entry=u64, pointer=u64, node=u64, new=u64, filled=u64[::1])
    cpdef u64 obtain(self, Place place, u64 number, u64 word) except? 0
    @cython.locals(blank=u64[::1], index=Py_ssize_t, bucket=Py_ssize_t)
    cpdef u64[::1] filled(self, u64 number, u64 word)
    cpdef int read_words(self, u64 base) except -1
    @cython.locals(base=u64, start=Py_ssize_t, held=u64)
    cpdef u64 freeze(self, u64 pointer) except? 0
    @cython.locals(
        endpoint=Endpoint, words=u64[::1], wanted=u64[::1], tickets=u64[::1], index=Py_ssize_t,
        word=u64, was=u64, desired=u64, slot=u64, held=u64, again=bint, count=Py_ssize_t,
        number=Py_ssize_t,
    )
    cdef u64 _freeze_part(self, u64 base, Py_ssize_t start, Py_ssize_t end) except? 0
    cpdef u64 half_of(self, u64 word, u64 depth) except? 2
    cdef u64 half_with(self, bytes key, u64 depth) except? 2
    @cython.locals(index=Py_ssize_t, word=u64, count=Py_ssize_t, reader=Objects, at_once=bint)
    cpdef int fill_pairs(self, u64 depth, u64 first, u64 second) except -1
    @cython.locals(number=Py_ssize_t, reader=Objects)
    cdef int _fill_read(self, Py_ssize_t count, u64 depth, u64 first, u64 second) except -1
    @cython.locals(half=u64)
    cdef int _fill_half(self, Objects reader, Py_ssize_t index, u64 depth, u64 first, u64 second) except -1
    cpdef int fill(self, u64 slot, u64 word) except -1
    cpdef int persist_halves(self, Place place, u64 first, u64 second) except -1
