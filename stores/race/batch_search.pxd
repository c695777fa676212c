cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, hash64, lowest_bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.layout cimport OBJECT_MASK
from limpet.stores.records cimport Objects
from limpet.stores.status cimport *

cdef u64 ARRIVED
cdef u64 KNOWN
cdef u64 SPLIT

cdef class BatchSearch:
    cdef readonly Index index
    cdef readonly Endpoint endpoint
    cdef readonly list places
    cdef readonly list readers
    cdef readonly u64[::1] slots
    cdef u64[::1] arrivals
    cdef u64[::1] left
    cdef u64[::1] reading
    cdef readonly u64[::1] others

    @cython.final
    cdef int _make_places(self) except -1
    @cython.locals(row=int)
    cpdef int locate_to_read(self, list keys, int count) except -1
    @cython.locals(row=int)
    cpdef int locate_to_write(self, u64[::1] hashes, int count) except -1
    @cython.final
    @cython.locals(place=Place)
    cdef int _post_entry(self, int row, u64 hashed) except -1
    @cython.final
    @cython.locals(index=Index, row=int, place=Place, at_once=bint, unknown=int)
    cdef int _read_buckets(self, int count) except -1
    @cython.final
    @cython.locals(index=Index, pointer=u64)
    cdef bint _row_arrived(self, Place place, int row) except -1
    @cython.final
    @cython.locals(index=Index, row=int, place=Place)
    cdef int _read_again(self, int count) except -1
    @cython.final
    @cython.locals(row=int, split=int)
    cdef bint _are_split(self, int count) except -1
    @cython.final
    @cython.locals(place=Place)
    cdef int consider(self, int row) except -1
    @cython.locals(row=int, at_once=bint, posted=bint, more=bint, reader=Objects, key=bytes)
    cpdef int match(
        self, list keys, int count, list values=*, Py_ssize_t first=*
    ) except -1
    @cython.final
    @cython.locals(index=Index, at=int, left=u64, word=u64, reference=u64, place=Place)
    cdef bint _post_object(self, int row, bytes key, Objects reader) except -1
    @cython.final
    @cython.locals(index=Index, at=int, word=u64, place=Place)
    cdef bint _object_arrived(
        self, int row, bytes key, Objects reader, list values, Py_ssize_t first
    ) except -1
