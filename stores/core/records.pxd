cimport cython

from limpet.shm.alloc.heap cimport Heap
from limpet.shm.clients.unique_ids cimport Tickets
from limpet.shm.endpoint.verbs cimport (
    Endpoint, Image, checksum, hash64, post_summed, u64, write_summed,
)
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.object_layout cimport *
from limpet.stores.core.status cimport *

cdef u64 NUMBER_MAX
cdef int LOW_BITS
cdef u64 LOW_MASK
cdef u64 MASK
cdef u64 SCRAMBLE
cdef u64 STAMP_SIZE

cpdef bint is_vacant(u64 pointer) noexcept
@cython.locals(number=u64)
cpdef u64 vacant_word(u64 ticket) noexcept

# STAMP_SIZE and LEAST are for others to import.

@cython.final
cdef class Stamps:
    cdef readonly Tickets tickets

    cpdef int forget(self) except -1
    cdef u64 take(self) except? 0

cdef class Objects:
    cdef readonly Heap heap
    cdef readonly Endpoint endpoint
    cdef readonly bint in_place
    cdef readonly Image image
    cdef u64 sizes
    cdef u64[::1] header
    cdef readonly u64 value_max
    cdef readonly u64 prefix
    cdef public Stamps stamps
    cdef readonly bint whole
    cdef public bint posts
    cdef u64 address
    cdef readonly bint complete

    @cython.locals(made=Objects)
    cpdef Objects reader(self)
    @cython.locals(size=u64)
    cpdef u64 size_of(self, bytes key, bytes value) except 0
    cpdef int write(self, u64 reference, bytes key, bytes value) except -1
    @cython.locals(sizes=u64, seed=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    @cython.locals(whole=u64)
    cpdef u64 size_for(self, bytes key, u64 size) except 0
    cpdef int write_head(self, u64 reference, bytes key, u64 size, u64 digest) except -1
    cpdef u64 seed(self, bytes key, u64 size) except? 0
    cpdef int load(self, u64 reference) except -1
    @cython.final
    cdef int _load_from(self, u64 reference, u64 address) except -1
    @cython.locals(found=bint)
    cpdef bint load_keyed(self, u64 reference, bytes key) except -1
    cpdef int post(self, u64 reference) except -1
    @cython.final
    cdef int _post_from(self, u64 reference, u64 address) except -1
    cpdef int arrived(self) except -1
    cpdef int post_keyed(self, u64 reference, bytes key) except -1
    @cython.final
    cdef bint matches(self, bytes key) except -1
    cdef u64 replica_to_read(self, u64 reference) except? 0
    @cython.final
    @cython.locals(count=u64)
    cdef object value_at(self, u64 address, u64 reference, bytes key)
    @cython.final
    @cython.locals(size=u64)
    cdef u64 _extent(self, u64 reference) noexcept
    cpdef bint key_is(self, bytes key) except -1
    @cython.locals(length=u64)
    cpdef bytes key(self)
    @cython.locals(start=u64, length=u64)
    cpdef bytes value(self)
    cpdef u64 length(self)
    @cython.locals(at=u64, length=u64, first=u64, last=u64, skip=u64, data=bytes)
    cpdef bytes part(self, start, stop)
    @cython.locals(start=u64)
    cdef (u64, u64) value_place(self) noexcept
    @cython.locals(size=u64, size_class=int)
    cpdef bint fits(self, u64 reference) except -1
    @cython.locals(seed=u64)
    cpdef bint intact(self) except -1
    cpdef u64 bytes_used(self) noexcept

cdef class StampedObjects(Objects):
    @cython.locals(sizes=u64, seed=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cpdef int write_head(self, u64 reference, bytes key, u64 size, u64 digest) except -1
