from limpet.shm.endpoint.verbs cimport u64
from limpet.stores.swarm.layout cimport *

cpdef u64 rank_of(u64 word) noexcept
cpdef u64 stamp_of(u64 word) noexcept
cpdef u64 time_of(u64 word) noexcept
cpdef u64 writer_of(u64 word) noexcept
cpdef u64 row_of(u64 word) noexcept
cpdef u64 side_of(u64 word) noexcept
cpdef bint is_tombstone(u64 word) noexcept
cpdef u64 tuple_word(u64 time, u64 writer, u64 flags, u64 row, u64 side) noexcept
cpdef u64 placed(u64 word, u64 row, u64 side) noexcept
