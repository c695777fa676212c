cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.rtx.commit cimport Commit
from limpet.stores.rtx.hash_keys cimport HashKeys
from limpet.stores.rtx.reads cimport KeyRead, Reads, Staging
from limpet.stores.rtx.slot_writes cimport SlotWrite
from limpet.stores.status cimport *

cdef class WriteSet(Staging):
    cdef readonly HashKeys keys
    cdef readonly Commit commit

    @cython.locals(
        keys=HashKeys, commit=Commit, reads=Reads, read=KeyRead, slot=u64, word=u64, found=bytes,
    )
    cpdef int stage(self, bytes key, bytes value) except -1
    @cython.locals(write=SlotWrite)
    cdef int _write(
        self, u64 slot, u64 word, bytes key, bytes value, KeyRead read, bint inserts, u64 hashed
    ) except -1
