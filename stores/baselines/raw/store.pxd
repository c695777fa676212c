cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.shm.endpoint.words cimport *
from limpet.stores.baselines.raw.parameters cimport *
from limpet.stores.core.object_layout cimport HEADER, IMAGE_SIZE
from limpet.stores.core.records cimport Objects
from limpet.stores.core.base cimport Attempt
from limpet.stores.core.status cimport *
from limpet.stores.race.check cimport Check
from limpet.stores.race.hash_store cimport HashStore
from limpet.stores.race.index cimport Index, Place
from limpet.stores.race.layout cimport OBJECT_MASK
from limpet.stores.race.slots cimport Slots
from limpet.stores.race.splitter cimport Splitter
from limpet.stores.swarm.cache cimport LocationCache

cdef class RawObjects(Objects):
    cdef readonly u64 room
    cdef bytes empty

    cpdef u64 size_of(self, bytes key, bytes value) except 0
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cdef int load_known(self, u64 reference, u64 size) except -1
    @cython.locals(sizes=u64)
    cdef u64 taken(self) noexcept
    cpdef bint deleted(self) noexcept
    cpdef bytes value(self)
    cpdef bint fits(self, u64 reference) except -1
    cpdef bint intact(self) except -1

cdef class Raw(HashStore):
    cdef RawObjects pairs
    cdef readonly LocationCache cache

    @cython.locals(at='long long', reference=u64, key=bytes)
    cdef int _prefetch_keys(self, list keys) except -1
    @cython.locals(at='long long', reference=u64)
    cdef u64 _known(self, bytes key) except? 0
    @cython.locals(at='long long')
    cdef int _remember(self, bytes key, u64 reference, u64 size) except -1
    @cython.locals(reference=u64)
    cdef u64 _seek(self, Place place, bytes key) except? 0
    @cython.locals(place=Place, reference=u64, made=u64, outcome=int)
    cpdef int _change_once(
        self, bytes key, bytes value, u64 size, int mode, u64 attempt, long long at, Attempt way
    ) except -1
    @cython.locals(reference=u64, at='long long', size=u64)
    cdef object search_once(self, Place place, bytes key)
    @cython.locals(at=u64, reference=u64, ticket=u64)
    cdef int delete_once(self, Place place, bytes key) except -1
    @cython.locals(at=u64, deleted=u64, ticket=u64)
    cdef int _write_over(self, u64 reference, bytes key, bytes value, int mode) except -1
