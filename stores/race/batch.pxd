cimport cython

from limpet.shm.endpoint.slots cimport CLIENT_JOURNAL_SIZE
from limpet.shm.endpoint.verbs cimport Endpoint, bit, hash64, lowest_bit, u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.records cimport Objects
from limpet.stores.core.status cimport *
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.layout cimport OBJECT_MASK

cdef int ROWS_MAX
cdef int SIZE_MAX
cdef u64 ARRIVED
cdef u64 KNOWN
cdef u64 SPLIT

cdef class Batch:
    cdef readonly int most
    cdef readonly int count
    cdef readonly list keys
    cdef readonly list values
    cdef readonly u64[::1] states
    cdef readonly u64[::1] modes
    cdef readonly u64[::1] sizes
    cdef readonly u64[::1] hashes
    cdef readonly u64[::1] nodes
    cdef readonly u64[::1] heads
    cdef readonly u64[::1] slots
    cdef readonly u64[::1] words
    cdef readonly u64[::1] updates
    cdef readonly u64[::1] desired
    cdef readonly u64[::1] places
    cdef public int first
    cdef readonly int logged
    cdef readonly u64[::1] objects
    cdef readonly u64[::1] links
    cdef readonly u64[::1] tickets
    cdef readonly u64[::1] references
    cdef public int width

    @cython.locals(
        count=int, end=Py_ssize_t, size=Py_ssize_t, pair=tuple, key=bytes, value=bytes, seen=u64,
        hashed=u64, keys=list, values=list,
    )
    cdef int take_in(
        self, pairs, Py_ssize_t start, Py_ssize_t prefix, bytes modes
    ) except -1
    @cython.locals(count=int, end=Py_ssize_t)
    cdef int take_keys(self, list keys, Py_ssize_t start) except -1
    cdef int begin(self, list keys, list values) except -1
    @cython.locals(hashed=u64, other=int, same=int)
    cpdef bint repeats(self, int row) except -1
    cdef int end(self, int row) except -1
    @cython.locals(other=int, same=int)
    cdef bint taken(self, int row, u64 slot) except -1
    @cython.locals(places=int, updates=int, row=int)
    cdef int fit(self) except -1
    @cython.locals(row=int)
    cpdef int leave_ready(self) except -1
    @cython.locals(row=int)
    cdef int leave_out(self, Py_ssize_t start, list left) except -1
    cdef int log(self, u64 reference, u64 link) except -1

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
    @cython.locals(decided=bint, row=int, slot=u64, place=Place)
    cdef bint settle(self, int start, int end) except -1
