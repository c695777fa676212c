cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.base cimport Store, as_bytes
from limpet.stores.race.old.store cimport Growing
from limpet.stores.baselines.raw.objects cimport RawObjects
from limpet.stores.swarm.cache cimport LocationCache

cdef u64 ADDRESS_MASK
cdef u64 DELETED
cdef int DONE
cdef int EXISTS
cdef int INSERT
cdef int MISSING
cdef int NO_MEMORY
cdef u64 PREFETCH_SIZE
cdef u64 OBJECT_MASK
cdef int UPDATE

cdef class Raw(Growing):
    cdef RawObjects pairs
    cdef readonly LocationCache cache

    @cython.locals(at='long long', reference=u64, key=bytes)
    cdef int _expect_keys(self, list keys) except -1
    @cython.locals(at='long long', reference=u64)
    cdef u64 _known(self, bytes key) except? 0
    @cython.locals(at='long long', reference=u64)
    cdef u64 _seek(self, bytes key) except? 0
    @cython.locals(reference=u64, made=u64)
    cdef int _write_once(self, bytes key, bytes value, u64 size, int mode, u64 attempt) except -1
    @cython.locals(at=u64, deleted=u64)
    cdef int _write_over(self, u64 reference, bytes key, bytes value, int mode) except -1
