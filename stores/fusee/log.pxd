cimport cython

from limpet.shm.endpoint.verbs cimport post_summed, u64, write_summed
from limpet.shm.endpoint.words cimport *
from limpet.stores.core.records cimport Objects, Stamps
from limpet.stores.fusee.links cimport *

cdef u64 MASK

cdef class LoggedObjects(Objects):
    cdef u64 birth
    cdef u64 stamp
    cdef u64[::1] entry_word

    cpdef Objects reader(self)
    @cython.locals(sizes=u64, seed=u64)
    cpdef int write_hashed(self, u64 reference, bytes key, bytes value, u64 hashed) except -1
    cdef int _begin(self, u64 sizes) except -1
    @cython.locals(replicas=u64, row=u64, k=u64, address=u64)
    cdef int _write_backups(self, u64 reference, bytes key, bytes value) except -1
    @cython.locals(replicas=u64, row=u64, k=u64, address=u64)
    cpdef int mark(self, u64 reference, u64 offset, u64 word) except -1
    @cython.locals(k=u64)
    cpdef u64 marked(self, u64 reference, u64 offset) except? 0
    @cython.locals(word=u64)
    cdef u64 _read_mark(self, u64 reference, u64 offset, u64 k) except? 0
    cpdef u64 death(self, u64 reference) except? 0
    cpdef int load(self, u64 reference) except -1
    cpdef bint load_keyed(self, u64 reference, bytes key) except -1
    cpdef int post(self, u64 reference) except -1
    cpdef int post_keyed(self, u64 reference, bytes key) except -1
    cdef int _post_backup(self, u64 reference) except -1
    @cython.locals(k=u64)
    cdef bint _posted_backup(self, u64 reference) except -1
    cdef int _load_backup(self, u64 reference) except -1
    @cython.locals(k=u64)
    cdef bint _found_backup(self, u64 reference) except -1
    @cython.locals(k=u64)
    cdef u64 replica_to_read(self, u64 reference) except? 0
    cpdef int load_at(self, u64 reference, u64 k) except -1
