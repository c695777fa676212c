# Part of verbs.pyx: the checks of each verb before and after the access.

# All of it is inlined; `_refuse` and `_mourn` raise the error.


cdef inline Mapped* word_at(Endpoint endpoint, u64 addr) noexcept:
    """The mapping with the word at `addr`; NULL: the word cannot be used."""
    cdef Mapped* mapped = &endpoint._map[addr >> 40 & 0xFF]
    # an aligned offset below the (aligned) coherent limit has all of its 8 bytes below it
    if unlikely(addr >> 48 | addr & 7 | <u64>(addr & OFFSET_MASK >= mapped.coherent), 0):
        return NULL
    if unlikely(endpoint._states[addr >> 40] != mapped.state, 0):
        return NULL
    return mapped


cdef inline Mapped* bytes_at(Endpoint endpoint, u64 addr, u64 size) noexcept:
    """The mapping with `size` bytes at `addr`; NULL: they cannot be used."""
    cdef u64 offset = addr & OFFSET_MASK
    cdef Mapped* mapped = &endpoint._map[addr >> 40 & 0xFF]
    if unlikely(addr >> 48 | <u64>(offset >= mapped.size), 0):
        return NULL
    if unlikely(size > mapped.size - offset, 0):
        return NULL
    if unlikely(endpoint._states[addr >> 40] != mapped.state, 0):
        return NULL
    return mapped


cdef inline bint is_lost(Endpoint endpoint, u64 addr, Mapped* mapped) noexcept:
    """Whether the memory accessed at `addr` is lost by now."""
    # ORDER: read after the access, not remembered from before it.
    cdef u64 state = (<volatile u64*>endpoint._states)[addr >> 40]
    return mapped.lost[0] != 0 or state != mapped.state
