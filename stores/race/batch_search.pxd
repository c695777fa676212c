cimport cython

from limpet.shm.endpoint.verbs cimport Endpoint, lowest_bit, u64
from limpet.stores.race.index cimport Index, Place, is_valid
from limpet.stores.records cimport Objects

cdef int BATCH
cdef u64 KNOWN
cdef u64 SPLIT
cdef u64 HELD
cdef u64 HELD_MASK
cdef u64 OBJECT_MASK
cdef u64 SLOTS

cdef class BatchSearch:
    cdef readonly Index index
    cdef readonly Endpoint endpoint
    cdef readonly list places
    cdef readonly list readers
    cdef readonly u64[::1] slots
    cdef u64[::1] left
    cdef u64[::1] reading
    cdef readonly u64[::1] others

    cdef int prepare(self) except -1
    @cython.locals(index=Index, row=int, place=Place)
    cpdef int locate_to_read(self, list keys, int count) except -1
    @cython.locals(index=Index, row=int, place=Place, view=u64)
    cpdef int locate_to_write(self, u64[::1] hashes, int count) except -1
    cdef int _prefetch(self, Place place) except -1
    @cython.locals(index=Index, row=int, place=Place, pointer=u64, known=int, split=int)
    cdef int _read_buckets(self, int count) except -1
    @cython.locals(index=Index, row=int, place=Place)
    cdef int _read_again(self, int count, int split) except -1
    @cython.locals(row=int)
    cpdef int match_all(self, list keys, int count) except -1
    @cython.locals(place=Place)
    cpdef int consider(self, int row) except -1
    cpdef int match(self, list keys, int count) except -1
    @cython.locals(
        index=Index, row=int, at=int, left=u64, word=u64, reference=u64, place=Place,
        reader=Objects, key=bytes, posted=bint,
    )
    cdef bint _post_next(self, list keys, int count) except -1
    @cython.locals(index=Index, row=int, at=int, word=u64, place=Place, reader=Objects)
    cdef int _look(self, list keys, int count) except -1
