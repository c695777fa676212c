# Part of verbs.pyx: the bodies of methods of `Endpoint` that are rare, or take long anyway, because
# they convert buffers, sleep or map memory. The methods are in verbs.pyx, with their docstrings.


cdef int do_init(Endpoint endpoint) except -1:
    cdef int i
    for i in range(256):
        endpoint._map[i].base = NULL
        endpoint._map[i].size = 0
        endpoint._map[i].coherent = 0
        endpoint._map[i].lost = NULL
        endpoint._map[i].state = 0
        endpoint._range[i] = -1
        endpoint._sent[i] = 0
    endpoint._operation = 1
    endpoint._states = NO_STATES
    endpoint._keep = {}
    memset(endpoint._own, 0, sizeof(endpoint._own))
    memset(endpoint._before, 0, sizeof(endpoint._before))
    endpoint.figures = endpoint._own
    endpoint._scopes = <Counters*>endpoint._own
    endpoint._here = endpoint._outside = endpoint._scopes
    endpoint._features = limpet_flush_features()
    endpoint._incoherent = False
    endpoint._plain = endpoint.hints = type(endpoint) is Endpoint
    if endpoint._plain and DIRECT != NULL:
        table_of(endpoint)[0] = DIRECT
    endpoint._era = 0
    endpoint._busy = endpoint._awaited = False
    endpoint._owner = 0
    endpoint.frame = None
    endpoint.abandoned = None
    endpoint.met_loss = 0
    endpoint._forks = limpet_forks
    endpoint._fuse = 0
    endpoint._guard = NULL
    endpoint._guarded = 0
    endpoint._armed = False
    endpoint.durable = endpoint._unfenced = False
    endpoint._noted = 0
    endpoint.latency_ns = 0


cdef void do_forget(Endpoint endpoint) noexcept:
    cdef int i
    endpoint._states = NO_STATES
    endpoint._guard = NULL
    endpoint._noted = 0
    endpoint._unfenced = endpoint.durable = False
    endpoint._arm()
    for i in range(256):
        endpoint._clear(i)


cdef void do_count_at(Endpoint endpoint, u64* figures) noexcept:
    cdef Counters* scopes = <Counters*>figures
    cdef int i
    if endpoint.figures == figures:
        return
    if endpoint.figures == endpoint._own:
        for i in range(sizeof(endpoint._own) // 8):
            figures[i] += endpoint._own[i]
    for i in range(SCOPE_WORDS):
        # what `counters` says stays as it is
        (<u64*>endpoint._before)[i] += figures[i] - endpoint.figures[i]
    memset(endpoint._own, 0, sizeof(endpoint._own))
    endpoint._here = scopes + (endpoint._here - endpoint._scopes)
    endpoint._outside = scopes + (endpoint._outside - endpoint._scopes)
    endpoint._scopes = scopes
    endpoint.figures = figures


cdef void do_clear(Endpoint endpoint, int node) noexcept:
    if node == 255:
        do_count_at(endpoint, endpoint._own)
    endpoint._era += 1
    if endpoint._range[node] >= 0:
        limpet_forget_range(endpoint._range[node])
        endpoint._range[node] = -1
    endpoint._map[node].base = NULL
    endpoint._map[node].size = 0
    endpoint._map[node].coherent = 0
    endpoint._map[node].lost = NULL
    endpoint._map[node].state = 0


cdef int do_attach(Endpoint endpoint, int node, mapping, Py_ssize_t size, coherent_bytes, u64 state, int fd) except -1:
    cdef Py_buffer view
    cdef char* base
    cdef u64 coherent = size if coherent_bytes is None else coherent_bytes
    if not 0 <= node <= 255 or endpoint._map[node].base != NULL:
        raise AddressError(f"node {node} cannot be attached: out of range or attached already")
    if coherent_bytes is not None and not endpoint._features & LIMPET_HAS_CLFLUSHOPT:
        raise CoherenceError(
            f"node {node} is not hardware-coherent and this CPU has no clflushopt; "
            "plain stores would stay invisible to the other clients"
        )
    PyObject_GetBuffer(mapping, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    base = <char*>view.buf
    try:
        if size < 8 or view.len < size or <u64>base % 64:
            raise AddressError(f"node {node}: the mapping is too small or misaligned")
    finally:
        PyBuffer_Release(&view)
    endpoint._range[node] = limpet_watch_range(
        base, size, fd, node == 255 or coherent_bytes is not None
    )
    if endpoint._range[node] < 0:
        raise AddressError(f"node {node}: this process has too many memory nodes mapped")
    endpoint._map[node].lost = &limpet_ranges[endpoint._range[node]].lost
    endpoint._map[node].coherent = coherent & ~7ULL
    if coherent_bytes is not None:
        endpoint._incoherent = True
        endpoint.hints = False
    endpoint._map[node].size = size
    endpoint._map[node].state = state
    endpoint._keep[node] = memoryview(mapping)
    endpoint._map[node].base = base


cdef bytes do_read(Endpoint endpoint, u64 addr, Py_ssize_t size):
    cdef bint torn = is_torn(endpoint, addr) and torn_at(endpoint, addr, <u64>size) != NULL
    cdef const char* at = NULL if torn else endpoint._at(addr, <u64>size)
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    if unlikely(torn, 0):
        read_torn(endpoint, addr, PyBytes_AS_STRING(data), size, True)
        return data
    if endpoint._incoherent and (addr & OFFSET_MASK) + <u64>size > endpoint._map[addr >> 40].coherent:
        endpoint.invalidate(addr, size)
    if <u64>size >= LIMPET_LONG:
        copy_long(endpoint, addr, PyBytes_AS_STRING(data), size, False)
    else:
        limpet_copy_out(PyBytes_AS_STRING(data), at, size)
    if unlikely(is_lost(endpoint, addr, &endpoint._map[addr >> 40]), 0):
        read_torn(endpoint, addr, PyBytes_AS_STRING(data), size, True)
    else:
        endpoint._reads(addr, size, True)
    return data


cdef int do_read_into(Endpoint endpoint, u64 addr, buffer) except -1:
    cdef Py_buffer view
    cdef const char* at
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if unlikely(is_torn(endpoint, addr), 0):
            return read_torn(endpoint, addr, <char*>view.buf, view.len, True)
        at = endpoint._at(addr, view.len)
        if endpoint._incoherent and (addr & OFFSET_MASK) + <u64>view.len > endpoint._map[addr >> 40].coherent:
            endpoint.invalidate(addr, view.len)
        if <u64>view.len >= LIMPET_LONG:
            copy_long(endpoint, addr, <char*>view.buf, view.len, False)
        else:
            limpet_copy_out(view.buf, at, view.len)
        if unlikely(is_lost(endpoint, addr, &endpoint._map[addr >> 40]), 0):
            return read_torn(endpoint, addr, <char*>view.buf, view.len, True)
        endpoint._reads(addr, view.len, True)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int do_write(Endpoint endpoint, u64 addr, data) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        endpoint._at(addr, view.len)
        endpoint._renew_edges(addr, view.len)
        copy_piece(endpoint, addr, <char*>view.buf, view.len)
        if endpoint._incoherent and (addr & OFFSET_MASK) + <u64>view.len > endpoint._map[addr >> 40].coherent:
            endpoint.write_back(addr, view.len)
        if unlikely(is_lost(endpoint, addr, &endpoint._map[addr >> 40]), 0):
            endpoint._mourn(addr >> 40)
        endpoint._writes(addr, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int do_pause(Endpoint endpoint, u64 attempt) except -1:
    cdef u64 i
    if attempt < 8:
        for i in range(4ULL << attempt):
            limpet_relax()
        return 0
    with nogil:
        if attempt < 24:
            sched_yield()
        else:
            limpet_sleep_ns(1_000_000 if attempt > 73 else (attempt - 23) * 20_000)
    return PyErr_CheckSignals()


cdef int do_futex_wait(Endpoint endpoint, u64 addr, u32 expected, u64 timeout_us) except -1:
    cdef const char* at = endpoint._word(addr)
    cdef int woken
    with nogil:
        woken = limpet_futex_wait(at, expected, timeout_us)
    PyErr_CheckSignals()
    # ORDER: look at the mapping after the sleep: another thread may have detached the node.
    limpet_load(endpoint._word(addr))
    if unlikely(is_lost(endpoint, addr, &endpoint._map[addr >> 40]), 0):
        endpoint._mourn(addr >> 40)
    return woken


cdef int do_futex_wake(Endpoint endpoint, u64 addr, int count) except -1:
    cdef const char* at = endpoint._word(addr)
    limpet_load(at)
    if unlikely(is_lost(endpoint, addr, &endpoint._map[addr >> 40]), 0):
        endpoint._mourn(addr >> 40)
    return limpet_futex_wake(at, count)


cdef bint do_take_over(Endpoint endpoint) except -1:
    cdef object frame = endpoint.frame
    cdef u64 owner = endpoint._owner
    if frame is None or not is_over(owner, frame):
        return False
    # Other threads may have run meanwhile; from here on they do not.
    if not endpoint._busy or endpoint._owner != owner or endpoint.frame is not frame:
        return False
    endpoint._owner = pthread_self()
    endpoint.frame = None
    try:
        if endpoint.abandoned is not None:
            endpoint.abandoned()
    except BaseException:
        endpoint.frame = frame
        raise
    endpoint._here = endpoint._outside
    return True


cdef int do_refuse(Endpoint endpoint, u64 addr, u64 size) except -1:
    cdef u64 node = addr >> 40
    cdef u64 offset = addr & OFFSET_MASK
    if FORMER <= addr < FORMER + (255ULL << 40):
        raise NodeFailed(node & 255, FORMERLY)
    if node < 256 and endpoint._map[node].base == NULL and endpoint._states[node] != 0:
        raise NodeFailed(node, why_failed(endpoint._states[node], -1))
    if node > 255 or offset >= endpoint._map[node].size:
        raise AddressError(f"the address {addr:#x} is on no memory node of this pool")
    if size > endpoint._map[node].size - offset:
        raise AddressError(f"{size} bytes at {addr:#x} reach beyond the end of the memory node")
    if endpoint._states[node] != expected_state(endpoint, node):
        raise NodeFailed(node, why_failed(endpoint._states[node], expected_state(endpoint, node)))
    if endpoint._map[node].state == TORN:
        if endpoint.met_loss:
            endpoint.met_loss = LOSS_CUTS
        raise NodeFailed(node, PAGES_LOST)
    if addr & 7:
        raise AddressError(f"the word at {addr:#x} is not aligned to 8 bytes")
    raise CoherenceError(
        f"the word at {addr:#x} is outside of the node's hardware-coherent range"
    )


cdef int do_mourn(Endpoint endpoint, u64 node) except -1:
    if endpoint._map[node].lost[0] == LIMPET_SHORT and limpet_give_back(endpoint._range[node]):
        raise StoreFull(
            f"node {node}: its file system has no memory left for a page of it; make room there"
        )
    if endpoint._map[node].lost[0] == LIMPET_TORN:
        if endpoint._map[node].state != TORN:  # a read would have noted it
            endpoint.met_loss = LOSS_CUTS
        torn_at(endpoint, node << 40, 0)
        if endpoint._states[node] == expected_state(endpoint, node):
            raise NodeFailed(node, PAGES_LOST)
    elif endpoint._map[node].lost[0]:
        raise NodeFailed(node, why_gone(node, "SIGBUS: a truncated or poisoned segment"))
    raise NodeFailed(node, why_failed(endpoint._states[node], expected_state(endpoint, node)))


cdef int do_renew_edges(Endpoint endpoint, u64 addr, u64 size) except -1:
    if unlikely(endpoint._incoherent, 0) and size:
        if (addr & OFFSET_MASK) + size > endpoint._map[addr >> 40].coherent:
            endpoint.invalidate(addr, 1)
            endpoint.invalidate(addr + size - 1, 1)
    return 0
