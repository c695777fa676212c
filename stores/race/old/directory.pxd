cimport cython

from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.records cimport Objects
from limpet.stores.race.old.hash_store cimport HashStore
from limpet.stores.race.old.index cimport Index
from limpet.stores.race.old.table cimport Race

cdef u64 ADDRESS_MASK
cdef u64 DIRECTORY_ENTRY
cdef u64 GROUP_SIZE
cdef u64 MASK
cdef u64 MIX_DIRECTORY
cdef u64 VACANT_CLASS

cpdef bint is_split(u64 pointer) noexcept

cdef class Directory(Race):
    cdef readonly u64 subtable_size
    cdef readonly u64 depth_first
    cdef readonly u64 depth_max
    cdef u64 entries
    cdef u64 deepest
    cdef unsigned char[::1] depths
    cdef u64[::1] known
    cdef u64 depth
    cdef u64 number
    cdef u64 entry
    cdef u64 pointer
    cdef bint surprised

    @cython.locals(prefix=u64, index=u64)
    cdef int _place(self, u64 hashed) except -1
    cdef u64 _index(self, u64 prefix) noexcept
    cdef int _look_deeper(self) except -1
    cpdef u64 _below(self, u64 number) except 0
    cdef int _found_places(self) except -1
    cdef u64 _prefix(self, u64 hashed) noexcept
    cdef u64 _entry(self, u64 table, u64 number) noexcept
    @cython.locals(index=int)
    cdef int _read_row(self, int row) except -1
    cdef int _room(self) except -2
    cdef u64 _base_of(self, u64 pointer) noexcept
    @cython.locals(pointer=u64)
    cdef object _keys_there(self, u64 table, u64 number, int group)
    cdef bint _holds(self, u64 slot, bytes key) except -1
