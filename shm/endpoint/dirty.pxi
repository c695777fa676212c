# Part of verbs.pyx: the lines that a client of a durable pool has still to write back.

cdef int note(Endpoint endpoint, u64 addr, u64 size) except -1:
    """Note the lines of these bytes, if they are on a node that is attached."""
    cdef u64 node = addr >> 40
    cdef u64 offset = addr & OFFSET_MASK
    cdef u64 first = addr & ~63ULL
    cdef u64 end = addr + size + 63 & ~63ULL
    cdef int index = endpoint._noted
    if node > 255 or size == 0 or offset >= endpoint._map[node].size:
        return 0
    if size > endpoint._map[node].size - offset:
        return 0
    # the newest first: most verbs touch what the verb before has touched
    while index > 0:
        index -= 1
        if first <= endpoint._dirty[index].end and end >= endpoint._dirty[index].first:
            endpoint._dirty[index].first = min(first, endpoint._dirty[index].first)
            endpoint._dirty[index].end = max(end, endpoint._dirty[index].end)
            return 0
    if endpoint._noted == DIRTY_MAX:
        write_back_noted(endpoint)
    endpoint._dirty[endpoint._noted].first = first
    endpoint._dirty[endpoint._noted].end = end
    endpoint._noted += 1
    return 0


cdef int note_step(Endpoint endpoint, u64 addr, u64 size) except -1:
    """As `note`, for a step that changes memory: not where contents are rebuilt after a cut."""
    cdef u64 offset = addr & OFFSET_MASK
    cdef int side = addr >= CONTROL
    if endpoint._volatile[side].first <= offset < endpoint._volatile[side].end:
        return 0
    return note(endpoint, addr, size)


cdef int write_back_noted(Endpoint endpoint) except -1:
    """Write the noted lines back, without a fence, and forget them."""
    cdef Dirty* last
    while endpoint._noted > 0:
        last = &endpoint._dirty[endpoint._noted - 1]
        endpoint.flush(last.first, last.end - last.first)
        endpoint._noted -= 1
        endpoint._unfenced = True
    return 0


cdef int persist_noted(Endpoint endpoint) except -1:
    write_back_noted(endpoint)
    if endpoint._unfenced:
        limpet_fence()
        endpoint._here.fences += 1
        endpoint._unfenced = False
    return 0


cdef int do_flush(Endpoint endpoint, u64 addr, u64 size) except -1:
    cdef Mapped* mapped = &endpoint._map[addr >> 40]
    cdef u64 offset = addr & OFFSET_MASK
    if offset < mapped.size:  # else the node was detached meanwhile
        size = min(size, mapped.size - offset)
        limpet_flush(mapped.base + offset, size, endpoint._features)
        endpoint._here.lines_flushed += (size + 63) >> 6
    return 0


cdef int do_make_durable(
    Endpoint endpoint, u64 node_from, u64 node_end, u64 control_from, u64 control_end
) except -1:
    if endpoint._plain and not endpoint._features:
        raise CoherenceError(
            "this CPU has neither clwb nor clflushopt: what it writes cannot be made persistent"
        )
    endpoint._volatile[0].first = node_from
    endpoint._volatile[0].end = node_end
    endpoint._volatile[1].first = control_from
    endpoint._volatile[1].end = control_end
    endpoint.durable = True
    endpoint._arm()
    return 0


def flush_mapping(mapping, Py_ssize_t size):
    """Write the lines of a mapping's first `size` bytes back; they are persistent afterwards.

    For what is written without an endpoint. Raises CoherenceError: the CPU cannot do it.
    """
    cdef Py_buffer view
    cdef int features = limpet_flush_features()
    if not features:
        raise CoherenceError(
            "this CPU has neither clwb nor clflushopt: what it writes cannot be made persistent"
        )
    PyObject_GetBuffer(mapping, &view, PyBUF_SIMPLE)
    try:
        if size > view.len:
            raise AddressError(f"{size} bytes are not within the mapping")
        limpet_flush(<char*>view.buf, size, features)
        limpet_fence()
    finally:
        PyBuffer_Release(&view)
